"""The models of penstock.nn once more, in plain PyTorch: written from the equations, for one
example, with Python's own control flow. They share weights with the models and nothing else.
"""

from __future__ import annotations

import torch
from torch import nn


def binary_tree_lstm(model, tree):
    def gates_of(layer, z, count):
        return torch.split(layer.weight @ z + layer.bias, layer.out_features // count)

    def visit(node):
        if not node.children:
            i, o, u = gates_of(model.leaf_gates, model.embedding.weight[node.token], 3)
            c = i.sigmoid() * u.tanh()
        else:
            (h_l, c_l), (h_r, c_r) = map(visit, node.children)
            i, f_l, f_r, o, u = gates_of(model.cell_gates, torch.hstack((h_l, h_r)), 5)
            c = i.sigmoid() * u.tanh() + f_l.sigmoid() * c_l + f_r.sigmoid() * c_r
        return o.sigmoid() * c.tanh(), c

    return visit(tree.to_nodes())[0]


def child_sum_tree_lstm(model, tree):
    def visit(node):
        x = model.embedding.weight[node.token]
        below = [visit(child) for child in node.children]
        m = sum((h for h, _ in below), torch.zeros(model.hidden))
        i, o, u = (model.word_gates(x) + model.child_gates(m)).chunk(3)
        c = i.sigmoid() * u.tanh()
        for h_k, c_k in below:
            c = c + (model.word_forget(x) + model.child_forget(h_k)).sigmoid() * c_k
        return o.sigmoid() * c.tanh(), c

    return visit(tree.to_nodes())[0]


def tree_gru(model, tree):
    weights = dict(model.named_parameters())

    def visit(node):
        below = [visit(child) for child in node.children]
        x = weights["embedding.weight"][node.token]
        w_r, w_z, w_n = (weights["word_gates.weight"] @ x + weights["word_gates.bias"]).chunk(3)
        m = sum(below, torch.zeros(model.hidden))
        kept = torch.zeros(model.hidden)
        for h in below:
            kept = kept + (w_r + weights["child_reset.weight"] @ h).sigmoid() * h
        z = (w_z + weights["sum_update.weight"] @ m).sigmoid()
        return z * m + (1 - z) * (w_n + weights["sum_candidate.weight"] @ kept).tanh()

    return visit(tree.to_nodes())


def recursive_tensor_net(model, tree):
    def visit(node):
        if not node.children:
            return model.embedding.weight[node.token]
        z = torch.hstack([visit(child) for child in node.children])
        quadratic = [z @ matrix @ z for matrix in model.tensor]
        return (torch.stack(quadratic) + model.linear.weight @ z + model.linear.bias).tanh()

    return visit(tree.to_nodes())


def as_torch_layer(model, sequence):
    """torch's own layer, with the parameters of the model in place of its own."""
    kind = {"LSTM": nn.LSTM, "GRU": nn.GRU}[type(model).__name__]
    inputs = model.weight_ih_l0.shape[1]
    layer = kind(inputs, model.hidden, model.layers, bidirectional=len(model.directions) > 1)
    if len(sequence):
        parameters = dict(model.named_parameters())
        return torch.func.functional_call(layer, parameters, (sequence,))
    zeros = torch.zeros(model.layers * len(model.directions), model.hidden)
    last = (zeros, zeros) if kind is nn.LSTM else zeros
    return sequence.new_zeros(0, model.hidden * len(model.directions)), last


def adaptive_computation(model, x, state):
    states, probabilities = [], []
    while True:
        state = model.step(x, state)
        states.append(state)
        probabilities.append(torch.sigmoid(model.halt.weight[0] @ state + model.halt.bias[0]))
        if sum(probabilities) >= 1 - model.epsilon or len(states) == model.limit:
            break
    remainder = 1 - sum(probabilities[:-1], torch.zeros(()))
    weights = [*probabilities[:-1], remainder]
    mean = sum(weight * state for weight, state in zip(weights, states, strict=True))
    return mean, len(states) + remainder, torch.tensor(len(states))


def early_exit(model, x):
    depth = 0
    for layer, head in zip(model.layers, model.heads, strict=True):
        x, depth = layer(x), depth + 1
        scores = head(x)
        if scores.softmax(0).amax() >= model.threshold:
            break
    return scores, torch.tensor(depth)


def mixture_of_experts(model, x):
    scores = model.gate.weight @ x + model.gate.bias
    best = sorted(range(len(model.experts)), key=lambda e: -scores[e].item())[: model.k]
    shares = torch.stack([scores[e] for e in best]).exp()
    answers = [model.experts[e](x) for e in best]
    return sum(a * share for a, share in zip(answers, shares, strict=True)) / shares.sum()


def beam_search(model, state):
    """Hypotheses as Python tuples of score, tokens and state; the best first."""
    kept = [(torch.zeros(()), (model.begin,), state)]
    for _ in range(model.limit):
        if kept[0][1][-1] == model.end:
            break
        candidates = []
        for score, tokens, state in kept:
            if tokens[-1] == model.end:
                candidates.append((score, tokens, state))
                continue
            state, logp = model.step(state, torch.tensor(tokens[-1]))
            candidates += [(score + p, (*tokens, t), state) for t, p in enumerate(logp)]
        kept = sorted(candidates, key=lambda candidate: -candidate[0].item())[: model.width]
    return torch.tensor(kept[0][1][1:]), kept[0][0]

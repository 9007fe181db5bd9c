"""Recursion over Python objects: trees, linked lists, generators, results kept on nodes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.existing_code.harness import Table

TABLE = Table()


class Node:
    """A tree as people write them: children, a word, and room for whatever the model finds."""

    def __init__(self, word=0, children=(), value=None):
        self.word = word
        self.children = list(children)
        self.value = value
        self.state = None

    def walk(self):
        yield self
        for child in self.children:
            yield from child.walk()


def trees():
    """Four trees of different forms and arities."""
    return [
        Node(1),
        Node(2, [Node(3), Node(4)]),
        Node(5, [Node(1, [Node(2), Node(3), Node(4)]), Node(6)]),
        Node(0, [Node(1, [Node(2, [Node(3)])]), Node(4), Node(5), Node(6, [Node(0)])]),
    ]


def binary_trees(make, size):
    """Three binary trees with a tensor at each leaf."""

    def leaf():
        return Node(value=make.tensor(size))

    def pair(left, right):
        return Node(children=[left, right])

    return [leaf(), pair(leaf(), pair(leaf(), leaf())), pair(pair(leaf(), leaf()), leaf())]


class ChildSum(nn.Module):
    """A child-sum Tree-LSTM that stores the state of each node on the node."""

    def __init__(self, words, embedded, hidden):
        super().__init__()
        self.hidden = hidden
        self.embedding = nn.Embedding(words, embedded)
        self.iou_x = nn.Linear(embedded, 3 * hidden)
        self.iou_h = nn.Linear(hidden, 3 * hidden)
        self.f_x = nn.Linear(embedded, hidden)
        self.f_h = nn.Linear(hidden, hidden)

    def node_forward(self, x, child_c, child_h):
        h_sum = torch.sum(child_h, dim=0, keepdim=True)
        i, o, u = torch.chunk(self.iou_x(x) + self.iou_h(h_sum), 3, dim=1)
        i, o, u = torch.sigmoid(i), torch.sigmoid(o), torch.tanh(u)
        f = torch.sigmoid(self.f_h(child_h) + self.f_x(x).repeat(len(child_h), 1))
        c = torch.mul(i, u) + torch.sum(torch.mul(f, child_c), dim=0, keepdim=True)
        return c, torch.mul(o, torch.tanh(c))

    def forward(self, tree):
        for child in tree.children:
            self(child)
        x = self.embedding(torch.tensor([tree.word]))
        if tree.children:
            child_c, child_h = zip(*(child.state for child in tree.children), strict=True)
            child_c, child_h = torch.cat(child_c, dim=0), torch.cat(child_h, dim=0)
        else:
            child_c = x.detach().new(1, self.hidden).fill_(0.0).requires_grad_()
            child_h = x.detach().new(1, self.hidden).fill_(0.0).requires_grad_()
        tree.state = self.node_forward(x, child_c, child_h)
        return tree.state


@TABLE.program
def child_sum_with_states_on_nodes(make):
    rows = trees()
    make.watch(lambda: [node.state for tree in rows for node in tree.walk()])
    return make.module(ChildSum(7, 3, 4)), rows


@TABLE.program
def results_in_a_dict_by_id(make):
    embedding, combine = make.module(nn.Embedding(7, 3)), make.module(nn.Linear(3, 3))

    def encode(tree):
        states = {}

        def visit(node):
            for child in node.children:
                visit(child)
            total = embedding.weight[node.word]
            for child in node.children:
                total = total + torch.tanh(combine(states[id(child)]))
            states[id(node)] = total

        visit(tree)
        return states[id(tree)]

    return encode, trees()


@TABLE.program
def a_traverse_that_collects_losses(make):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 3)
            self.combine = nn.Linear(6, 3)
            self.score = nn.Linear(3, 5)

        def traverse(self, node, losses):
            state = self.embedding(torch.tensor(node.word))
            for child in node.children:
                state = F.relu(self.combine(torch.cat((state, self.traverse(child, losses)))))
            losses.append(F.cross_entropy(self.score(state), torch.tensor(node.word % 5)))
            return state

        def forward(self, tree):
            losses = []
            self.traverse(tree, losses)
            return sum(losses) / len(losses), len(losses)

    return make.module(Net()), trees()


@TABLE.program
def tensors_as_attributes_of_leaves(make):
    w = make.tensor(4, 2)

    def encode(node):
        if node.value is not None:
            return node.value.tanh()
        left, right = (encode(child) for child in node.children)
        return torch.cat([left, right]) @ w

    return encode, binary_trees(make, 2)


@TABLE.program
def tuples_of_state_up_a_binary_tree(make):
    gates = make.module(nn.Linear(4, 10))

    def encode(node):
        if node.value is not None:
            return node.value, torch.zeros(2)
        (lh, lc), (rh, rc) = encode(node.children[0]), encode(node.children[1])
        i, f, g, o, u = gates(torch.cat([lh, rh])).split(2)
        c = i.sigmoid() * u.tanh() + f.sigmoid() * lc + g.sigmoid() * rc
        return o.sigmoid() * c.tanh(), c

    return encode, binary_trees(make, 2)


@TABLE.program
def a_generator_inside(make):
    w = make.tensor(3)

    def running(xs):
        total = torch.zeros(3)
        for x in xs:
            total = total * w + x
            yield total

    return lambda xs: list(running(xs)), make.sentences((3, 1, 4), 3)


@TABLE.program
def appending_and_stacking(make):
    cell = make.module(nn.GRUCell(3, 2))

    def read(sentence):
        h = torch.zeros(2)
        states = []
        for t in range(sentence.size(0)):
            h = cell(sentence[t], h)
            states.append(h)
        return torch.stack(states).mean(0)

    return read, make.sentences((3, 1, 4), 3)


@TABLE.program
def a_linked_list(make):
    w = make.tensor(2, 2)

    def chain(count):
        return None if count == 0 else (make.tensor(2), chain(count - 1))

    def fold(link):
        total = torch.ones(2)
        while link is not None:
            value, link = link
            total = torch.tanh(total @ w) + value
        return total

    return fold, [chain(3), chain(0), chain(2)]


@TABLE.program
def exceptions_as_control_flow(make):
    w = make.tensor(2)

    def pop_all(xs):
        stack, total = list(xs), w
        while True:
            try:
                total = total * stack.pop()
            except IndexError:
                return total

    return pop_all, make.sentences((3, 1), 2)


@TABLE.program
def a_stack_machine(make):
    combine = make.module(nn.Linear(4, 2))
    rows = make.sentences((3, 2, 4), 2)
    codes = ["ssrsr", "ssr", "sssrsrr"]

    def reduce(xs, code):
        buffer, stack = list(xs.split(1)), []
        for letter in code:
            if letter == "s":
                stack.append(buffer.pop(0))
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(torch.tanh(combine(torch.cat([left, right], 1))))
        assert not buffer
        return stack.pop().squeeze(0)

    return reduce, rows, codes


@TABLE.program
def a_memory_keyed_by_tensors(make):
    def share(xs):
        seen = {}
        for x in xs:
            y = x * 2
            seen[y] = len(seen)
            assert y in seen
        a, b = (x.exp() for x in xs[:2])
        assert a is not b
        assert len({a, b, a}) == 2
        return sum(key * (rank + 1) for key, rank in seen.items()) + a * b

    return share, [make.tensors(2, 3), make.tensors(3, 3)]


@TABLE.program
def an_attribute_of_the_model_as_scratch(make):
    class Rnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.RNNCell(2, 3)

        def reset(self):
            self.h = torch.zeros(1, 3)

        def step(self, x):
            self.h = self.cell(x.unsqueeze(0), self.h)

        def forward(self, sentence):
            self.reset()
            for word in sentence:
                self.step(word)
            return self.h.squeeze(0)

    return make.module(Rnn()), make.sentences((2, 3, 1), 2)


@TABLE.program
def closures_and_default_arguments(make):
    w = make.tensor(2)

    def outer(x, scale=2.0, *, offset=w):
        def inner(y):
            return scale * y + offset

        return inner(inner(x))

    return outer, make.tensors(3, 2)


@TABLE.program
def child_sum_over_any_number_of_children(make):
    embedding, up = make.module(nn.Embedding(7, 3)), make.module(nn.Linear(3, 3))

    def encode(node):
        word = embedding(torch.tensor(node.word))
        if not node.children:
            return word
        return torch.tanh(up(torch.stack([encode(child) for child in node.children]).sum(0)) + word)

    return encode, trees()

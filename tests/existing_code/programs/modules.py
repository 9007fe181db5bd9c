"""Ready modules of `torch.nn`, containers, hooks, and what cannot be batched."""

from __future__ import annotations

import torch
from torch import nn

from tests.existing_code.harness import Table

TABLE = Table()


@TABLE.program
def a_sequential(make):
    net = make.module(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh()))
    return net, make.tensors(4, 3)


@TABLE.program
def a_module_list_with_skips(make):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

        def forward(self, x, depth):
            for layer in self.layers[:depth]:
                x = x + torch.relu(layer(x))
            return x

    return make.module(Net()), make.tensors(4, 3), [3, 1, 2, 0]


@TABLE.program
def a_module_dict_by_name(make):
    experts = make.module(nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)}))

    def chain(x, names):
        for name in names:
            x = experts[name](x).tanh()
        return x

    return chain, make.tensors(3, 3), ["ab", "ba", "aab"]


@TABLE.program
def an_embedding_of_sentences(make):
    embedding, out = make.module(nn.Embedding(9, 3, padding_idx=0)), make.module(nn.Linear(3, 2))
    rows = [make.integers(9, length) for length in (2, 5, 3)]
    return lambda words: out(embedding(words)).mean(0), rows


@TABLE.program(warns=True)
def an_embedding_bag(make):
    bag = make.module(nn.EmbeddingBag(9, 3, mode="mean"))
    rows = [make.integers(9, length) for length in (2, 5, 2)]
    return lambda words: bag(words.unsqueeze(0)).squeeze(0), rows


@TABLE.program
def an_lstm_cell_over_words(make):
    cell = make.module(nn.LSTMCell(3, 2))

    def read(sentence):
        state = torch.zeros(1, 2), torch.zeros(1, 2)
        for word in sentence:
            state = cell(word.view(1, -1), state)
        return state

    return read, make.sentences((2, 4, 1), 3)


@TABLE.program
def an_lstm_cell_without_a_state(make):
    cell = make.module(nn.LSTMCell(3, 2))
    return lambda x: cell(x)[0], make.tensors(3, 3)


@TABLE.program
def a_gru_cell_over_words(make):
    cell = make.module(nn.GRUCell(3, 2))

    def read(sentence):
        h = None
        for t in range(len(sentence)):
            h = cell(sentence[t : t + 1], h)
        return h

    return read, make.sentences((2, 4, 1), 3)


@TABLE.program
def an_rnn_cell(make):
    cell = make.module(nn.RNNCell(3, 2))
    return lambda x: cell(cell(x)[[0, 1, 0]] * 1.0), make.tensors(2, 3)


@TABLE.program
def a_whole_lstm(make):
    lstm = make.module(nn.LSTM(2, 2, bidirectional=True, batch_first=True))

    def read(sentence):
        output, (h, c) = lstm(sentence.unsqueeze(0))
        return output.squeeze(0), h.mean(0), c

    return read, make.sentences((2, 1, 2), 2)


@TABLE.program
def a_whole_gru(make):
    gru = make.module(nn.GRU(2, 2))
    return lambda sentence: gru(sentence)[1][-1], make.sentences((2, 1, 2), 2)


@TABLE.program
def a_layer_norm(make):
    norm, out = make.module(nn.LayerNorm(4)), make.module(nn.Linear(4, 4))
    return lambda x: out(norm(x)) + x, make.tensors(3, 4)


@TABLE.program
def dropout_in_eval_mode(make):
    net = make.module(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 2)))
    return net.eval(), make.tensors(3, 3)


@TABLE.program
def dropout_that_drops_nothing(make):
    net = make.module(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.Linear(3, 2)))
    return net, make.tensors(3, 3)


@TABLE.program
def multihead_attention(make):
    attention = make.module(nn.MultiheadAttention(4, 2, batch_first=True))

    def attend(xs):
        x = xs.unsqueeze(0)
        out, weights = attention(x, x, x)
        return out.squeeze(0), weights.squeeze(0)

    return attend, make.sentences((3, 2, 3), 4)


@TABLE.program
def a_transformer_layer(make):
    layer = make.module(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True))
    return lambda xs: layer(xs.unsqueeze(0)).mean(1), make.sentences((3, 2), 4)


@TABLE.program
def a_convolution_over_words(make):
    convolution = make.module(nn.Conv1d(3, 2, 2))

    def read(sentence):
        return convolution(sentence.t().unsqueeze(0)).relu().max(dim=2)[0].squeeze(0)

    return read, make.sentences((4, 3, 4), 3)


@TABLE.program
def a_bilinear_layer(make):
    bilinear = make.module(nn.Bilinear(3, 3, 2))
    return lambda x, y: bilinear(x, y), make.tensors(3, 3), make.tensors(3, 3)


@TABLE.program
def losses_as_modules(make):
    criterion, out = nn.CrossEntropyLoss(), make.module(nn.Linear(3, 4))

    def loss(x, target):
        return criterion(out(x).unsqueeze(0), torch.tensor([target]))

    return loss, make.tensors(3, 3), [0, 3, 1]


@TABLE.program
def keyword_arguments_of_a_module(make):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x, *, by=2.0, mask=None):
            y = x * self.weight * by
            return y if mask is None else y.masked_fill(mask, 0.0)

    scale = make.module(Scale())
    mask = torch.tensor([True, False, False])
    return lambda x: scale(scale(x, by=3.0), mask=mask), make.tensors(3, 3)


@TABLE.program
def tied_weights(make):
    embedding = make.module(nn.Embedding(5, 3))
    out = nn.Linear(3, 5, bias=False)
    out.weight = embedding.weight

    def score(word):
        return out(torch.tanh(embedding(torch.tensor(word))))

    return score, [0, 3, 4]


@TABLE.program
def forward_hooks_once_for_each_instance(make):
    net = make.module(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)))
    seen = []

    def hook(module, args, output):
        assert isinstance(args[0], torch.Tensor)
        seen.append((type(module).__name__, tuple(output.shape)))
        return output * 2

    def pre_hook(module, args):
        seen.append(("before", tuple(args[0].shape)))
        return (args[0] + 1,)

    net[0].register_forward_hook(hook)
    net[2].register_forward_pre_hook(pre_hook)
    make.watch(lambda: seen)
    return net, make.tensors(3, 3)


@TABLE.program
def hooks_that_read_values(make):
    net = make.module(nn.Linear(3, 2))
    means = []
    net.register_forward_hook(lambda module, args, output: means.append(output.mean().item()))
    make.watch(lambda: list(means))
    return net, make.tensors(3, 3)


@TABLE.program
def a_weight_under_weight_norm(make):
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    return make.module(layer), make.tensors(3, 3)


@TABLE.program
def a_buffer_that_is_read(make):
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(12.0).view(4, 3))
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, xs):
            return xs + self.scale * self.table[: xs.size(0)]

    return make.module(Positions()), make.sentences((2, 4, 3), 3)


@TABLE.program(warns=True)
def batch_norm_in_training(make):
    norm = make.module(nn.BatchNorm1d(3))
    make.watch(lambda: [norm.running_mean, norm.running_var, norm.num_batches_tracked])
    return norm, make.sentences((4, 3, 4), 3)


@TABLE.program(warns=True)
def batch_norm_between_layers(make):
    net = make.module(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))
    make.watch(lambda: [net[1].running_mean, net[1].running_var, net[1].num_batches_tracked])
    return net, make.sentences((4, 3, 4), 3)


@TABLE.program
def batch_norm_in_eval_mode(make):
    norm = make.module(nn.BatchNorm1d(3))
    norm.running_mean += 0.5
    make.watch(lambda: [norm.running_mean, norm.num_batches_tracked])
    return norm.eval(), make.sentences((4, 3, 4), 3)


class Cube(torch.autograd.Function):
    """A cube whose gradient is told to be twice what it is."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 6 * x**2


@TABLE.program(warns=True)
def a_custom_autograd_function(make):
    w = make.tensor(2)
    return lambda x: Cube.apply(x * w) + w, make.tensors(3, 2)


@torch.library.custom_op("penstock_tests::wave", mutates_args=())
def wave(x: torch.Tensor, steps: int) -> torch.Tensor:
    """An operation of which nobody knows how to batch it."""
    return torch.from_numpy((x.numpy() * steps).copy())


@wave.register_fake
def _(x, steps):
    return torch.empty_like(x)


wave.register_autograd(
    lambda ctx, gradient: (gradient * ctx.steps, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "steps", inputs[1]),
)


@TABLE.program(warns=True)
def a_custom_op_without_a_batching_rule(make):
    w = make.tensor(2)
    return lambda x: wave(x * w, 3).sin() + w, make.tensors(3, 2)

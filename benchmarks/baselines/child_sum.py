"""How much two sentences have to do with each other, by child-sum Tree-LSTM (Tai et al., 2015).

`Relatedness` is written for one pair, in the style of public code: recursion over tree objects,
states stored on their nodes, zeros in place of children that a leaf lacks. `by_level` runs the same
model by hand over many pairs. All ways return log-probabilities of the five scores, a row for each
pair, and allow gradients. Word vectors are held fixed, as in the paper, unless asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.baselines.products import Layer
from benchmarks.baselines.segments import Segments
from penstock import nn as models
from penstock.data import Tree
from penstock.data.sick import SentencePair

State = tuple[Tensor, Tensor]

#: Scores go from 1 to this.
SCORES = 5


class Word:
    """A word of a sentence, with the words that depend on it."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.children: list[Word] = []
        #: c and h, once the model was here.
        self.state: State | None = None


class Sentence:
    """The words of a sentence as token numbers, and the root of its dependency tree."""

    def __init__(self, tree: Tree) -> None:
        words = [Word(position) for position in range(len(tree))]
        for position, parent in enumerate(tree.parents().tolist()):
            if parent >= 0:
                words[parent].children.append(words[position])
        self.root = words[int(tree.root)]
        self.tokens = tree.token


class ChildSumTreeLSTM(models.ChildSumTreeLSTM):
    """The state of a word: from its vector and from the states of the words below it."""

    def node_forward(self, word: Tensor, child_c: Tensor, child_h: Tensor) -> State:
        """One word; the states of its children lie in rows."""
        h_sum = torch.sum(child_h, dim=0, keepdim=True)
        gates = self.word_gates(word) + self.child_gates(h_sum)
        write, output, new = torch.split(gates, gates.size(1) // 3, dim=1)
        write, output, new = torch.sigmoid(write), torch.sigmoid(output), torch.tanh(new)
        forget = self.child_forget(child_h) + self.word_forget(word).repeat(len(child_h), 1)
        kept = torch.mul(torch.sigmoid(forget), child_c)
        c = torch.mul(write, new) + torch.sum(kept, dim=0, keepdim=True)
        h = torch.mul(output, torch.tanh(c))
        return c, h

    def level_forward(
        self,
        gates: Tensor,
        forget: Tensor,
        child_c: Tensor,
        child_h: Tensor,
        parents: Tensor,
    ) -> State:
        """Many words that have children, from what their own vectors give to their gates.

        The states of all children lie in rows; `parents` says which word each belongs to.
        """
        forget = self.child_forget(child_h) + forget.index_select(0, parents)
        kept = _sum_segments(torch.sigmoid(forget) * child_c, parents, len(gates))
        h_sum = _sum_segments(child_h, parents, len(gates))
        return _cell(gates + self.child_gates(h_sum), kept)

    def forward(self, node: Word, words: Tensor) -> State:  # type: ignore[override]
        """All words below `node`, then itself."""
        for child in node.children:
            self.forward(child, words)
        if node.children:
            states = [child.state for child in node.children]
            child_c, child_h = (torch.cat(parts, dim=0) for parts in zip(*states))
        else:
            child_c = torch.zeros(1, self.hidden, dtype=words.dtype)
            child_h = torch.zeros(1, self.hidden, dtype=words.dtype)
        node.state = self.node_forward(words[node.position], child_c, child_h)
        return node.state


class Similarity(nn.Module):
    """Scores from two states: by where they point alike, and by how far they are apart."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.compare = nn.Linear(2 * inputs, hidden)
        self.score = nn.Linear(hidden, SCORES)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Log-probabilities, for one pair or for rows."""
        features = torch.cat((torch.mul(left, right), torch.abs(left - right)), 1)
        return functional.log_softmax(self.score(torch.sigmoid(self.compare(features))), dim=1)


class Relatedness(nn.Module):
    """The whole model, for one pair of sentences."""

    def __init__(
        self,
        vocabulary: int,
        embedding: int = 300,
        hidden: int = 150,
        similarity: int = 50,
        *,
        trains_embedding: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.embedding.weight.requires_grad_(trains_embedding)
        self.encoder = ChildSumTreeLSTM(self.embedding, hidden)
        self.similarity = Similarity(hidden, similarity)

    def forward(self, left: Sentence, right: Sentence) -> Tensor:
        """Log-probabilities of the scores, in one row."""
        _, left_h = self.encoder(left.root, self.embedding(left.tokens))
        _, right_h = self.encoder(right.root, self.embedding(right.tokens))
        output: Tensor = self.similarity(left_h, right_h)
        return output


def sentences_of(pairs: Sequence[SentencePair]) -> list[tuple[Sentence, Sentence]]:
    """The pairs as objects for plain recursion."""
    return [(Sentence(pair.left), Sentence(pair.right)) for pair in pairs]


def targets_of(pairs: Sequence[SentencePair]) -> Tensor:
    """A score as probabilities of the two whole scores next to it."""
    targets = torch.zeros(len(pairs), SCORES)
    for row, pair in zip(targets, pairs, strict=True):
        below = min(floor(pair.similarity), SCORES - 1)
        row[below] = pair.similarity - below
        row[below - 1] = 1 - row[below]
    return targets


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    """How far the log-probabilities are from the targets, as a mean over the pairs."""
    return functional.kl_div(output, targets, reduction="batchmean")


def per_sample(model: Relatedness, pairs: Sequence[tuple[Sentence, Sentence]]) -> Tensor:
    """One pair after the other."""
    return torch.cat([model(left, right) for left, right in pairs])


def by_level(
    model: Relatedness, segments: Segments, encoder: ChildSumTreeLSTM | None = None
) -> Tensor:
    """All words of one height of all trees at once; sums over children are sums over segments.

    The products that read words alone are made once for all words. A leaf has no children to read.
    Only the states that are still to be read are carried on; roots come last in a height. A twin of
    the model's encoder may stand in for it.
    """
    encoder = encoder or model.encoder
    words = model.embedding(segments.tokens)
    leaves = segments.leaves
    gates = encoder.word_gates(words).split(segments.sizes)
    forgets = encoder.word_forget(words[leaves:]).split(segments.sizes[1:])
    c, h = _cell(gates[0] + encoder.child_gates.bias, None)
    finished = [h[segments.leaf_pool :]]
    c, h = c[: segments.leaf_pool], h[: segments.leaf_pool]
    for step, word_gates, word_forget in zip(segments.steps, gates[1:], forgets, strict=True):
        child_c, child_h = c.index_select(0, step.children), h.index_select(0, step.children)
        new_c, new_h = encoder.level_forward(
            word_gates, word_forget, child_c, child_h, step.parents
        )
        finished.append(new_h[step.pool :])
        c = torch.cat([c.index_select(0, step.keep), new_c[: step.pool]])
        h = torch.cat([h.index_select(0, step.keep), new_h[: step.pool]])
    roots = torch.cat(finished).index_select(0, segments.roots)
    left, right = roots.chunk(2)
    output: Tensor = model.similarity(left, right)
    return output


def layers(model: Relatedness, segments: Segments) -> list[Layer]:
    """The products that `by_level` makes: of words, of the states of each height, of pairs."""

    def of(linear: nn.Linear, rows: int, *, learns_inputs: bool = True) -> Layer:
        return Layer(rows, linear.in_features, linear.out_features, learns_inputs)

    encoder, similarity = model.encoder, model.similarity
    words, trained = len(segments.tokens), model.embedding.weight.requires_grad
    pairs = len(segments.roots) // 2
    found = [
        of(encoder.word_gates, words, learns_inputs=trained),
        of(encoder.word_forget, words - segments.leaves, learns_inputs=trained),
        of(similarity.compare, pairs),
        of(similarity.score, pairs),
    ]
    for step, size in zip(segments.steps, segments.sizes[1:], strict=True):
        found += [of(encoder.child_forget, len(step.children)), of(encoder.child_gates, size)]
    return found


def _cell(gates: Tensor, kept: Tensor | None) -> State:
    write, output, new = gates.chunk(3, 1)
    c = torch.sigmoid(write) * torch.tanh(new)
    c = c if kept is None else c + kept
    return c, torch.sigmoid(output) * torch.tanh(c)


def _sum_segments(values: Tensor, segments: Tensor, count: int) -> Tensor:
    return values.new_zeros(count, values.shape[1]).index_add(0, segments, values)

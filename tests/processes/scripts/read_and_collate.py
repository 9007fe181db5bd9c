"""Reads small files of every kind, collates them in DataLoader workers, and compares with a loop.

Run with a folder to write to.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import penstock as ps
from penstock.data import conllu, listops, penn, sick

ROW = "{}\t{}\t_\t_\t_\t_\t{}\t_\t_\t_\n"


class Reader(nn.Module):
    """A program for each kind of example."""

    def __init__(self):
        super().__init__()
        self.encoder = ps.nn.ChildSumTreeLSTM(nn.Embedding(20, 3), 4)

    @ps.function
    def of_tree(self, tree):
        return self.encoder(tree)

    @ps.function
    def of_pair(self, pair):
        return (self.encoder(pair.left) - self.encoder(pair.right)) * pair.similarity

    @ps.function
    def of_expression(self, expression):
        return self.encoder(expression.tree) * expression.value

    @ps.function
    def of_labelled(self, example):
        tree = ps.data.Tree(
            example.label, example.tree.start, example.tree.children, example.tree.root
        )
        return self.encoder(tree) + example.tree.token[example.tree.root]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def kinds(model: Reader, folder: Path):
    """Each kind of example with the program for it."""
    sentences = "".join(ROW.format(n, f"w{n}", n - 1) for n in (1, 2, 3)) + "\n"
    sentences += ROW.format(1, "w1", 2) + ROW.format(2, "w2", 0)
    path = written(folder, "a.conllu", sentences)
    yield model.of_tree, conllu.read_trees(path, conllu.read_vocabulary([path]))

    for side in "ab":
        written(folder, f"train/{side}.toks", "A b\nc d e\nA\n")
        written(folder, f"train/{side}.parents", "2 0\n2 0 2\n0\n")
    written(folder, "train/sim.txt", "1\n2.5\n5\n")
    words = sick.read_vocabulary(["train"], folder=folder)
    yield model.of_pair, sick.read_pairs("train", words, folder=folder)

    path = written(folder, "a.tsv", "7\t( ( ( [MAX 1 ) 7 ) ] )\n3\t3\n")
    yield model.of_expression, listops.read_expressions(path)

    path = written(folder, "a.tree", "(S (A a) (B (A b) (A c)))\n(A b)\n")
    words, labels = penn.read_vocabulary([path]), penn.read_labels([path])
    yield model.of_labelled, penn.read_trees(path, words, labels)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    for program, examples in kinds(Reader(), folder):
        loader = DataLoader(examples, batch_size=2, collate_fn=program.collate, num_workers=1)
        found = torch.cat([program.map(batch, out="stack") for batch in loader])
        expected = torch.stack([program(example) for example in examples])
        torch.testing.assert_close(found, expected)
    print("agreed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

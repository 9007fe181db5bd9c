"""CoNLL-U, Penn brackets and ListOps become trees; what is wrong is refused by file and line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from penstock.data import Tree, conllu, listops, penn
from penstock.errors import TreeError

SENTENCES = """\
# text = Birds don't sing.
1\tBirds\tbird\tNOUN\t_\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
3.1\tnow\tnow\tADV\t_\t_\t_\t_\t4:advmod\t_
4\tsing\tsing\tVERB\t_\t_\t0\troot\t_\t_

1\tYes\tyes\tINTJ\t_\t_\t0\troot\t_\t_
"""

BRACKETS = """\
( (S (NP (DT the) (NN cat))
     (VP (VBZ sleeps))) )
(3 (2 good) (4 (1 not) (2 bad)))
"""

EXPRESSIONS = "7\t( ( ( [MAX 1 ) ( ( ( [MIN 9 ) 7 ) ] ) ) ] )\n3\t3\n"


def write(folder: Path, text: str, name: str = "data.txt") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(read, path: Path, line: int) -> str:
    with pytest.raises(TreeError) as caught:
        read(path)
    assert f"at {path}:{line}\n" in str(caught.value)
    return str(caught.value)


def read_conllu(path: Path) -> list[Tree]:
    return conllu.read_trees(path, conllu.read_vocabulary([path]))


def read_penn(path: Path) -> list[penn.LabelledTree]:
    return penn.read_trees(path, penn.read_vocabulary([path]), penn.read_labels([path]))


def test_words_of_a_sentence_are_the_nodes_of_its_tree(tmp_path: Path) -> None:
    path = write(tmp_path, SENTENCES)
    words = conllu.read_vocabulary([path])
    assert list(words) == ["Birds", "Yes", "do", "n't", "sing"]
    first, second = conllu.read_trees(path, words)
    assert first.parents().tolist() == [3, 3, 3, -1]
    assert first.token.tolist() == [words[word] for word in ("Birds", "do", "n't", "sing")]
    assert second.parents().tolist() == [-1]


def test_compressed_files_and_unknown_words(tmp_path: Path) -> None:
    path = tmp_path / "data.conllu.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(SENTENCES.replace("\n", "\r\n"))
    assert conllu.read_trees(path, {"do": 5}, unknown=9)[0].token.tolist() == [9, 5, 9, 9]


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("\t4\tnsubj", "\t9\tnsubj", 2, "an index in parents is out of range"),
        ("\t4\tnsubj", "\t0\tnsubj", 2, "a tree has exactly one root"),
        ("\t4\tnsubj", "\tx\tnsubj", 2, "a head is not a number"),
        ("1\tBirds\tbird", "1\tBirds bird", 2, "the wrong number of columns"),
        ("2\tdo", "5\tdo", 4, "words are not numbered one after the other"),
        ("2\tdo", "two\tdo", 4, "a word has no number"),
    ],
)
def test_a_bad_line_of_a_treebank_is_named(
    tmp_path: Path, old: str, new: str, line: int, reason: str
) -> None:
    assert reason in refusal(read_conllu, write(tmp_path, SENTENCES.replace(old, new)), line)


def test_an_error_has_four_parts(tmp_path: Path) -> None:
    path = write(tmp_path, SENTENCES.replace("1\tYes\tyes", "1\tYes"))
    assert refusal(read_conllu, path, 9) == (
        "conllu: a line has the wrong number of columns.\n"
        f"  at {path}:9\n"
        "  expected  10, separated by tabs\n"
        "  found     9\n"
        "Mend the line, or leave out what it belongs to."
    )


def test_brackets_become_trees_with_words_and_labels(tmp_path: Path) -> None:
    path = write(tmp_path, BRACKETS)
    words, labels = penn.read_vocabulary([path]), penn.read_labels([path])
    first, second = penn.read_trees(path, words, labels)
    name = {number: label for label, number in labels.items()}
    names = [name[number] for number in first.label.tolist()]
    assert names == ["", "S", "NP", "DT", "NN", "VP", "VBZ"]
    assert first.tree.parents().tolist() == [-1, 0, 1, 2, 2, 1, 5]
    at_leaves = [words[word] for word in ("the", "cat", "sleeps")]
    assert [token for token in first.tree.token.tolist() if token >= 0] == at_leaves
    assert [name[number] for number in second.label.tolist()] == ["3", "2", "4", "1", "2"]
    assert second.tree.parents().tolist() == [-1, 0, 0, 2, 2]


def test_a_word_may_hold_a_space_that_is_not_plain(tmp_path: Path) -> None:
    path = write(tmp_path, "(NN Xpd\u2009TTD)")
    assert list(penn.read_vocabulary([path])) == ["Xpd\u2009TTD"]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("(S (NP (DT the)\n", 1, "a bracket is not closed"),
        ("(DT the)\n)\n", 2, "a bracket was not opened"),
        ("(S (NP) (VP (V is)))\n", 1, "a bracket is empty"),
        ("(S the (V is))\n", 1, "a bracket holds a word and a bracket"),
        ("(S (V is)\nthe)\n", 2, "a word is not alone in its bracket"),
        ("(V is not)\n", 1, "a word is not alone in its bracket"),
        ("\nis\n", 2, "a word stands outside of brackets"),
    ],
)
def test_brackets_that_are_no_tree_are_named_by_line(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    assert reason in refusal(read_penn, write(tmp_path, text), line)


def test_words_and_labels_that_are_not_known_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, BRACKETS)
    labels = penn.read_labels([path])
    assert "found     'the'" in refusal(lambda path: penn.read_trees(path, {}, labels), path, 1)
    unlabelled = refusal(lambda path: penn.read_trees(path, {}, {"": 0}, unknown=0), path, 1)
    assert "a label is not known" in unlabelled


def test_expressions_are_read_as_operators_or_as_they_are_bracketed(tmp_path: Path) -> None:
    path = write(tmp_path, EXPRESSIONS)
    first, second = listops.read_expressions(path)
    words = listops.VOCABULARY
    assert first.tree.token.tolist() == [words["[MAX"], 1, words["[MIN"], 9, 7]
    assert first.tree.parents().tolist() == [-1, 0, 0, 2, 2]
    assert (first.value, second.value, len(second.tree)) == (7, 3, 1)
    binary = listops.read_expressions(path, form="binary", limit=1)
    assert [len(expression.tree) for expression in binary] == [13]
    assert binary[0].tree.start.diff().unique().tolist() == [0, 2]


@pytest.mark.parametrize("form", listops.FORMS)
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("12\t3", "a line does not start with a value"),
        ("3", "a line does not start with a value"),
        ("3\t( [MAX 1", "an operator has no end"),
        ("3\t( [AVG 1 ) ] )", "a word is not in the vocabulary"),
        ("3\t1 ]", "an operator was not begun"),
        ("3\t[MAX ]", "an operator has no argument"),
        ("3\t1 2", "a line has not one expression"),
    ],
)
def test_a_bad_expression_is_named_by_line(
    tmp_path: Path, form: str, line: str, reason: str
) -> None:
    path = write(tmp_path, f"3\t3\n{line}\n")
    found = refusal(lambda path: listops.read_expressions(path, form=form), path, 2)
    assert reason in found or form == "binary"


def test_made_up_expressions_have_the_values_that_they_say() -> None:
    expressions = listops.made_up_expressions(50, depth=3, seed=1)
    names = {token: word for word, token in listops.VOCABULARY.items()}

    def value(node):
        if not node.children:
            return node.token
        return listops.OPERATORS[names[node.token]]([value(child) for child in node.children])

    assert [value(found.tree.to_nodes()) for found in expressions] == [
        found.value for found in expressions
    ]
    again = listops.made_up_expressions(50, depth=3, seed=1)
    assert [found.tree.token.tolist() for found in again] == [
        found.tree.token.tolist() for found in expressions
    ]


def test_medians_and_sums_are_those_of_the_data_set() -> None:
    assert [listops.OPERATORS["[MED"](values) for values in ([1, 9, 4], [1, 4])] == [4, 2]
    assert listops.OPERATORS["[SM"]([7, 8]) == 5


def test_other_forms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Pass one of operators, binary"):
        listops.read_expressions(tmp_path, form="postfix")


def test_a_file_that_gzip_did_not_make_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(SENTENCES.encode())
    for name, data in {"other.gz": b"1\tone", "cut.gz": whole[:60]}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(TreeError, match=f"(?s)cannot be unpacked.*{name}.*Fetch the file"):
            read_conllu(tmp_path / name)


def test_a_line_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.conllu"
    path.write_bytes(b"# one\n# two\n# \xff\n")
    assert "a line is not text" in refusal(read_conllu, path, 3)

// The words that Python and native code tell each other in: words.py has the same ones.
//
// All that a call needs lies in one structure of 64-bit words. Launches are read from the records of
// the native planner.

#pragma once

#include "code.hpp"

namespace {

using Word = int64_t;

// Operands and targets of a block, what its halves take, and what either gives, at most: Python sees
// to it (words.py). A launch takes two arguments for each.
constexpr int MOST_ITEMS = 64;

// What records are, and how they give values; as in plan/native/opcodes.py.
enum { LAUNCH_RECORD, STORE_RECORD, COPY_RECORD, PADDED_RECORD };
enum { SPAN_VALUES, LISTED_VALUES };
constexpr Word LAUNCH_HEAD = 4, PADDED_HEAD = 7, OTHER_RECORD = 10;

// What an operand is: the same for all rows, slots of an arena, integers of the host, or something
// that is left to Python.
enum { UNIFORM, SLOTS, HOSTED, OTHER };

// Words of a launch: where its record is, its rows, its block, where its saved values begin, whether
// it is run here, where it is said which rows are the same (-1 where nobody looks), and how many were
// computed, if those that are the same were computed once (else 0).
enum { AT, ROWS, BLOCK, SAVED, IS_NATIVE, SAME, DISTINCT, LAUNCH_WORDS };

// Words of the form of a block. Behind them come two words for each operand (what it is, and which
// one), the arena of each target, and the bytes of a row of each saved value.
enum { CODE, MOST_ROWS, OPERANDS, TARGETS, LISTED, RESULTS, MAY_SHARE, FORM };

// Words of an arena: its first chunk, how many there are, and the bytes of a row. Of a chunk: its
// first slot, the first one behind it, and where slot 0 would be.
enum { FIRST, COUNT, BYTES, ARENA_WORDS };
enum { START, STOP, ORIGIN, CHUNK_WORDS };

// Words of the gradients of an arena: where that of slot 0 would be, which slots have one, whose
// are not asked for (or null), the bytes of a row and of an element, and the first slot behind all.
enum { VALUES, PRESENT, UNASKED, ROW_BYTES, ITEM_BYTES, END, GRADIENT_WORDS };

// What backward halves are known by: a block, and a set of results that have cotangents. For each
// block the set of those that may have some comes first, LEFT where there are too many.
constexpr int MOST_RESULTS = 4, SETS = 1 << MOST_RESULTS;
enum { UNKNOWN = -1, LEFT = -2 };

// Words of a half; behind them the saved values, the uniform values and the results whose cotangents
// it takes, then three words for each operand to whose slots it adds (its place in the record, its
// arena, and which of the given values), two words for each value given (what becomes of it, and the
// bytes of a row; of a sum: all bytes), and the words of what is collected of them. A pass has words
// of its own for each half: how many rows' factors wait (or UNKNOWN, or LEFT), how many there is room
// for, and where it is.
enum { ADDEND, FACTOR, SUM, GIVEN_WORDS = 2 };
enum { HALF_CODE, TAKEN, READ, COTANGENTS, ADDED, GIVEN, COLLECTED, NEEDS_SAVED, FACTORS, HALF };
enum { WAITING, MOST_WAITING, MEMORY };

// What is collected for the gradient of a uniform value: which gradient, and of which values given. A
// sum has `columns` numbers; all others have some entries for each row. Entries of so many columns are
// added up, or to the rows of a table, told by the second value, of which there are `more`, but for
// one; or they are the columns of a factor, and `more` are those of the second one.
enum { WHOLE_SUM, SUM_OF_ROWS, PRODUCT_OF_FACTORS, TABLE };
enum { HOW, GRADIENT, FIRST_VALUE, SECOND_VALUE, ENTRIES, COLUMNS, MORE, SKIPPED, ITEM, COLLECTED_WORDS };

// Words of such a gradient: where it is, and whether anything has been written there.
enum { PLACE, IS_WRITTEN, UNIFORM_WORDS };

// What has become of a launch on the way back.
enum { FRESH, GONE, HAS_PAGE };

// Why the way back stops.
enum { OVER, PLAIN, WANTED, READY, ZEROS, ROOM, USED, BROKEN };

struct Strips {
  const Word* heads;
  Word heads_end;
  const Word* data;
  const Word* form_of;
  const Word* forms;
  const Word* arenas;
  const Word* chunks;
  char* const* wires;
  const Word* counts;
  Word* launches;
  Word* same;
  char* saved;
  char* scratch;
  Word scratch_end;
  Gemm<float> sgemm;
  Gemm<double> dgemm;
  Word threads;
  Word number;
  Word piece_rows;
  Word least_shared;
  Word most_shared;
  const Word* rows;
  // found by measuring
  Word saved_bytes;
  Word same_words;
  Word natives;
  Word scratch_most;
  Word highest;
  // on the way back
  const Word* gradients;
  const Word* half_of;
  const Word* halves;
  char* zeros;
  char* gone;
  Word* factors;
  char* const* back_wires;
  Word* uniform_gradients;
  Word keeps;
  // what the way back stops for
  Word why;
  Word set;
  Word other_set;
};

}  // namespace

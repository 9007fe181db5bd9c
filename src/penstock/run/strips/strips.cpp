// Runs strips: compiled launches that follow each other, forward and backward, without Python.
//
// Nothing here owns memory but lists of rows. A launch that cannot be run here is left to Python:
// functions return the number of the launch at which they stopped.

#include <algorithm>
#include <new>
#include <vector>

#include "halves.hpp"

namespace {

// Runs a launch; whether that could be done.
bool run_launch(Strips& s, Word number) {
  Word* launch = s.launches + number * LAUNCH_WORDS;
  if (!launch[IS_NATIVE]) return false;
  const Word *record = s.heads + launch[AT], *form = form_of(s, record[1]);
  Arguments arguments;
  take(s, record, form, arguments);
  char* results[MOST_ITEMS];
  char* place = s.saved + launch[SAVED];
  for (Word k = 0; k < form[RESULTS]; ++k) {
    results[k] = place;
    place += aligned(saved_rows(form)[k] * record[2]);
  }
  thread_local std::vector<Word> elsewhere;
  Word rows = record[2];
  launch[DISTINCT] = launch[SAME] < 0 ? 0 : find_distinct(s, launch, record, form);
  if (launch[DISTINCT]) {
    rows = launch[DISTINCT];
    arguments = arguments.of_rows(Same(s, launch).examples, rows, elsewhere);
  }
  const auto* code = reinterpret_cast<const Word*>(form[CODE]);
  const Pass pass = pass_of(s, record[1]);
  const Word size = piece_of(s, rows);
  for (Word first = 0; first < rows; first += size) {
    Arguments piece = arguments.piece(first, std::min(size, rows - first));
    if (run_code(code, piece.pointers, piece.sizes, s.scratch, results, pass)) return false;
    for (Word k = 0; k < form[RESULTS]; ++k) results[k] += saved_rows(form)[k] * size;
  }
  if (launch[DISTINCT]) hand_out(s, launch, record, form);
  return true;
}

}  // namespace

// Counts the rows of all launches of each block.
extern "C" void penstock_count(Strips* strips, Word* rows) {
  const Strips& s = *strips;
  for (Word at = 0; at < s.heads_end;) {
    const Word* record = s.heads + at;
    at += record_words(s, record);
    if (record[0] == LAUNCH_RECORD) rows[record[1]] += record[2];
  }
}

// Adds up the rows of some launches, by block.
extern "C" void penstock_add_rows(Strips* strips, Word* rows, Word from, Word to) {
  const Word* launch = strips->launches + from * LAUNCH_WORDS;
  for (Word number = from; number < to; ++number, launch += LAUNCH_WORDS)
    rows[launch[BLOCK]] += launch[ROWS];
}

// Finds out which records are launches that can be run here, and what they need; how many records
// there are.
extern "C" Word penstock_measure(Strips* strips) {
  Strips& s = *strips;
  s.saved_bytes = s.same_words = s.natives = s.scratch_most = s.highest = 0;
  Word number = 0;
  for (Word at = 0; at < s.heads_end; ++number) {
    const Word* record = s.heads + at;
    Word* launch = s.launches + number * LAUNCH_WORDS;
    launch[AT] = at, launch[IS_NATIVE] = 0, launch[SAVED] = s.saved_bytes;
    launch[SAME] = -1, launch[DISTINCT] = 0;
    at += record_words(s, record);
    if (record[0] != LAUNCH_RECORD) continue;
    const Word* form = form_of(s, record[1]);
    launch[ROWS] = record[2], launch[BLOCK] = record[1];
    launch[IS_NATIVE] = is_native(s, record, form);
    if (!launch[IS_NATIVE]) continue;
    s.saved_bytes += saved_bytes(form, record[2]);
    ++s.natives;
    if (!form[MAY_SHARE] || record[2] < s.least_shared) continue;
    launch[SAME] = s.same_words;
    s.same_words += 2 * record[2];
  }
  return number;
}

// Runs launches from one number up to another; the number of the one at which it stops, as it has
// failed or is not run here.
extern "C" Word penstock_forward(Strips* strips, Word from, Word to) {
  Word number = from;
  try {
    while (number < to && run_launch(*strips, number)) ++number;
  } catch (const std::bad_alloc&) {  // Python may have room for it
  }
  return number;
}

// Takes launches back, the one before `from` first, down to `to`; the number of the one at which it
// stops, which has not begun, or -1 where all have gone.
extern "C" Word penstock_backward(Strips* strips, Word from, Word to) {
  Strips& s = *strips;
  for (Word number = from - 1; number >= to; --number) {
    const Word* record = s.heads + s.launches[number * LAUNCH_WORDS + AT];
    const Word* form = form_of(s, record[1]);
    bool has_begun = false;
    try {
      s.why = take_back(s, number, record, form, has_begun);
    } catch (const std::bad_alloc&) {  // of a list of rows: Python may have room for it
      s.why = has_begun ? BROKEN : PLAIN;
    }
    if (s.why != OVER) return number;
    forget_targets(s, record, form);
  }
  s.why = OVER;
  return -1;
}

// Runs the code of one launch, as if its block had so many rows in all its launches: for tests.
extern "C" int penstock_run_code(const Word* words, char** arguments, const Word* sizes,
                                 char* scratch, char** results, Gemm<float> sgemm,
                                 Gemm<double> dgemm, Word threads, Word pass, Word rows) {
  return run_code(words, arguments, sizes, scratch, results, {sgemm, dgemm, threads, pass, rows});
}

extern "C" Word penstock_scratch_bytes(const Word* words, const Word* sizes) {
  return scratch_bytes(words, sizes);
}

// Contracts all factors that wait: those of the halves that begin at these words. Whether it could.
extern "C" int penstock_collect(Strips* strips, const Word* halves, Word count) {
  for (Word k = 0; k < count; ++k)
    if (!collect_waiting(*strips, strips->halves + halves[k])) return 0;
  return 1;
}

// out = first' second, or added to it: rows of both lie `apart` elements from each other, those of
// the result without gaps. There must be a vector of columns of `second`.
extern "C" void penstock_contract(Word bytes, const void* first, Word first_apart, Word columns,
                                  const void* second, Word second_apart, Word second_columns,
                                  Word rows, void* out, Word is_added, Word threads) {
  const auto run = [=](auto zero) {
    using T = decltype(zero);
    const Factor<T> left{static_cast<const T*>(first), first_apart, columns};
    const Factor<T> right{static_cast<const T*>(second), second_apart, second_columns};
    contract(left, right, rows, static_cast<T*>(out), is_added != 0, threads);
  };
  bytes == sizeof(float) ? run(0.0f) : run(0.0);
}

// Lets go of what a pass of this thread has packed, unless it is little.
extern "C" void penstock_end_pass() {
  packs<float>().trim();
  packs<double>().trim();
}

// Whether products of many rows are fast here, too.
extern "C" int penstock_is_fast() { return IS_FAST; }

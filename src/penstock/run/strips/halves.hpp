// Takes launches back: the half for each group of rows, or why Python must do something first.

#pragma once

#include <algorithm>
#include <vector>

#include "gathering.hpp"

namespace {

// Runs one half for some rows; whether it could.
bool run_half(Strips& s, const Word* launch, const Word* record, const Word* form, const Word* half,
              const Rows& chosen) {
  const Computed computed(s, launch);
  const Word rows = chosen.count;
  Arguments arguments;
  const Word* item = half + HALF;
  char* saved[MOST_ITEMS];
  char* place = s.saved + launch[SAVED];
  for (Word k = 0; k < form[RESULTS]; ++k) {
    saved[k] = place;
    place += aligned(saved_rows(form)[k] * record[2]);
  }
  for (Word k = 0; k < half[TAKEN]; ++k) {
    arguments.add(saved[*item++], record[2]);
    arguments.add(chosen.index(s), rows);
  }
  for (Word k = 0; k < half[READ]; ++k) arguments.add(s.back_wires[*item++], 0);
  std::vector<Word> picked;
  picked.reserve(half[COTANGENTS] * rows);
  for (Word k = 0; k < half[COTANGENTS]; ++k) {
    const Target target(record, form, *item++);
    const Slots slots(s, target.entry);
    const Gradients gradients(s, target.arena);
    const Word* index = slots.index(s) + chosen.first;
    if (chosen.listed || computed.examples) {
      index = picked.data() + picked.size();
      for (Word row = 0; row < rows; ++row) picked.push_back(slots[computed[chosen[row]]]);
    }
    arguments.add(gradients.values, gradients.end);
    arguments.add(index, rows);
  }
  const Word* added = item;
  Places results(s, half, rows);
  const auto* code = reinterpret_cast<const Word*>(half[HALF_CODE]);
  char* scratch = s.scratch + results.used;
  const Pass pass = pass_of(s, record[1]);
  if (run_code(code, arguments.pointers, arguments.sizes, scratch, results.of, pass)) return false;
  s.factors[half[FACTORS] + WAITING] += rows;
  for (Word k = 0; k < half[ADDED]; ++k, added += 3) {
    const Slots slots(s, record + LAUNCH_HEAD + 3 * added[0]);
    Gradients(s, added[1]).add(slots, computed, chosen, results.of[added[2]]);
  }
  return collect_all(s, half, results, rows, true);
}

// Whether a half can run now; why not, if it cannot.
Word look_for_half(Strips& s, Word number, const Word* record, const Word* form, Word set,
                   Word rows) {
  const Word block = record[1];
  const Word found = s.half_of[block * (SETS + 1) + 1 + set];
  if (found == LEFT) return PLAIN;
  if (found == UNKNOWN) {
    s.set = set;
    return WANTED;
  }
  const Word* half = s.halves + found;
  if (half[NEEDS_SAVED] && s.gone[number] == GONE) return USED;
  const Word* factors = s.factors + half[FACTORS];
  if (factors[WAITING] == LEFT) return PLAIN;
  s.set = found;
  if (factors[WAITING] == UNKNOWN) return READY;
  s.scratch_most = room_of(s, record, form, half, piece_of(s, rows));
  return s.scratch_most > s.scratch_end ? ROOM : OVER;
}

// Takes one launch back; why it could not be done here, if so: but for BROKEN nothing has happened
// then.
Word take_back(Strips& s, Word number, const Word* record, const Word* form, bool& has_begun) {
  const Word block = record[1], results = s.half_of[block * (SETS + 1)];
  if (!results) return OVER;
  if (s.gone[number] == HAS_PAGE || results < 0) return PLAIN;
  const Word* launch = s.launches + number * LAUNCH_WORDS;
  const Computed computed(s, launch);
  Word lacking = 0, why = OVER;
  const Word set = held_set(s, record, form, results, lacking);
  if (!set) return OVER;
  Groups groups;
  if (lacking)
    why = group(s, launch, record, form, set, groups);
  else
    groups.add(set, {computed.count});
  for (int k = 0; k < groups.count && why == OVER; ++k)
    why = look_for_half(s, number, record, form, groups.sets[k], groups.rows[k].count);
  if (why != OVER) return why;
  if (launch[DISTINCT]) merge_cotangents(s, launch, record, form, set);
  if (lacking) put_zeros(s, computed, record, form, lacking);
  for (int k = 0; k < groups.count; ++k) {
    const Word* half = s.halves + s.half_of[block * (SETS + 1) + 1 + groups.sets[k]];
    const Rows& rows = groups.rows[k];
    const Word size = piece_of(s, rows.count);
    for (Word begin = 0; begin < rows.count; begin += size, has_begun = true) {
      const Rows piece = rows.piece(begin, std::min(size, rows.count - begin));
      const Word* factors = s.factors + half[FACTORS];
      const bool is_full = factors[WAITING] + piece.count > factors[MOST_WAITING];
      if (is_full && !collect_waiting(s, half)) return BROKEN;
      if (!run_half(s, launch, record, form, half, piece)) return has_begun ? BROKEN : PLAIN;
    }
    if (half[NEEDS_SAVED] && !s.keeps) s.gone[number] = GONE;
  }
  return OVER;
}

}  // namespace

// Which rows of a launch have cotangents of which results, and gradients of slots.

#pragma once

#include <vector>

#include "same.hpp"

namespace {

// The rows of a launch that were computed: all, or an example of each kind.
struct Computed {
  Word count;
  const Word* examples = nullptr;

  Computed(const Strips& s, const Word* launch) : count(launch[ROWS]) {
    if (!launch[DISTINCT]) return;
    count = launch[DISTINCT];
    examples = Same(s, launch).examples;
  }

  // Which row of the launch one of these is.
  Word operator[](Word k) const { return examples ? examples[k] : k; }
};

// Some of these, which follow each other or are listed.
struct Rows {
  Word count;
  const Word* listed = nullptr;
  Word first = 0;

  Word operator[](Word k) const { return listed ? listed[k] : first + k; }
  const Word* index(const Strips& s) const { return listed ? listed : s.counts + first; }
  Rows piece(Word begin, Word size) const {
    return {size, listed ? listed + begin : nullptr, first + begin};
  }
};

template <typename Element>
void add_all(char* to, const char* more, Word bytes) {
  auto* sum = reinterpret_cast<Element*>(to);
  const auto* term = reinterpret_cast<const Element*>(more);
  for (Word k = 0; k < bytes / Word(sizeof(Element)); ++k) sum[k] += term[k];
}

struct Gradients {
  char* values;
  char* present;
  const char* unasked;
  Word bytes, item, end;

  Gradients(const Strips& s, Word arena) {
    const Word* words = s.gradients + arena * GRADIENT_WORDS;
    values = reinterpret_cast<char*>(words[VALUES]);
    present = reinterpret_cast<char*>(words[PRESENT]);
    unasked = reinterpret_cast<const char*>(words[UNASKED]);
    bytes = words[ROW_BYTES];
    item = words[ITEM_BYTES];
    end = words[END];
  }

  char* of(Word slot) const { return values + slot * bytes; }

  void forget(const Slots& slots) const {
    for (Word row = 0; present && row < slots.count; ++row) present[slots[row]] = 0;
  }

  // The first gradient of a slot is written, others are added to it.
  void add_to(Word slot, const char* row) const {
    if (!present[slot]) {
      std::memcpy(of(slot), row, bytes);
      present[slot] = 1;
    } else if (item == 4) {
      add_all<float>(of(slot), row, bytes);
    } else {
      add_all<double>(of(slot), row, bytes);
    }
  }

  void add(const Slots& slots, const Computed& computed, const Rows& chosen, const char* rows) const {
    for (Word k = 0; k < chosen.count; ++k, rows += bytes) {
      const Word slot = slots[computed[chosen[k]]];
      if (!unasked || !unasked[slot]) add_to(slot, rows);
    }
  }
};

void forget_targets(const Strips& s, const Word* record, const Word* form) {
  for (Word k = 0; k < form[TARGETS]; ++k) {
    const Target target(record, form, k);
    Gradients(s, target.arena).forget(Slots(s, target.entry));
  }
}

// Which results have cotangents in some row, and (in `lacking`) which of these not in all rows.
Word held_set(const Strips& s, const Word* record, const Word* form, Word results, Word& lacking) {
  Word set = 0;
  for (Word bits = results, k = 0; bits; bits >>= 1, ++k) {
    if (!(bits & 1)) continue;
    const Target target(record, form, k);
    const Slots slots(s, target.entry);
    const Gradients gradients(s, target.arena);
    Word count = 0;
    for (Word row = 0; gradients.present && row < slots.count; ++row)
      count += gradients.present[slots[row]];
    if (count) set |= Word(1) << k;
    if (count && count < slots.count) lacking |= Word(1) << k;
  }
  return set;
}

// The cotangents of rows that are the same become one, of the example.
void merge_cotangents(const Strips& s, const Word* launch, const Word* record, const Word* form,
                      Word set) {
  const Same same(s, launch);
  for (Word bits = set, k = 0; bits; bits >>= 1, ++k) {
    if (!(bits & 1)) continue;
    const Target target(record, form, k);
    const Slots slots(s, target.entry);
    const Gradients gradients(s, target.arena);
    for (Word row = 0; row < record[2]; ++row) {
      const Word slot = slots[row], example = slots[same.examples[same.which[row]]];
      if (slot == example || !gradients.present[slot]) continue;
      gradients.add_to(example, gradients.of(slot));
      gradients.present[slot] = 0;
    }
  }
}

Word set_of_row(const Strips& s, const Word* record, const Word* form, Word set, Word row) {
  Word found = 0;
  for (Word bits = set, k = 0; bits; bits >>= 1, ++k) {
    if (!(bits & 1)) continue;
    const Target target(record, form, k);
    const Gradients gradients(s, target.arena);
    if (gradients.present[Slots(s, target.entry)[row]]) found |= Word(1) << k;
  }
  return found;
}

// The rows of a launch by the set of results that they have cotangents of.
struct Groups {
  Word sets[SETS];
  Rows rows[SETS];
  int count = 0;
  std::vector<Word> listed;

  void add(Word set, Rows some) {
    sets[count] = set;
    rows[count++] = some;
  }
};

// The set of each row that was computed: what it or one that is the same has cotangents of. Whether
// all rows of the launch have some: those that have none may go back another time.
bool find_sets(const Strips& s, const Word* launch, const Word* record, const Word* form, Word set,
               std::vector<char>& sets) {
  const Word* which = launch[DISTINCT] ? Same(s, launch).which : nullptr;
  for (Word row = 0; row < record[2]; ++row) {
    const Word own = set_of_row(s, record, form, set, row);
    if (!own) return false;
    sets[which ? which[row] : row] |= char(own);
  }
  return true;
}

// Rows that lack some cotangents go with the others where zeros have no other effect; why it cannot
// be told, if so.
Word group(Strips& s, const Word* launch, const Word* record, const Word* form, Word set,
           Groups& groups) {
  const Word block = record[1], rows = Computed(s, launch).count;
  std::vector<char> sets(rows);
  if (!find_sets(s, launch, record, form, set, sets)) return PLAIN;
  Word counts[SETS] = {};
  for (Word row = 0; row < rows; ++row) {
    Word own = sets[row];
    if (own != set) {
      const char known = s.zeros[(block * SETS + set) * SETS + own];
      if (!known) {
        s.set = set, s.other_set = own;
        return ZEROS;
      }
      if (known == 1) own = set;
    }
    sets[row] = char(own);
    ++counts[own];
  }
  if (counts[set] == rows) {
    groups.add(set, {rows});
    return OVER;
  }
  groups.listed.reserve(rows);
  for (Word own = SETS - 1; own > 0; --own) {
    if (!counts[own]) continue;
    const Word* first = groups.listed.data() + groups.listed.size();
    for (Word row = 0; row < rows; ++row)
      if (sets[row] == own) groups.listed.push_back(row);
    groups.add(own, {counts[own], first});
  }
  return OVER;
}

// Rows that lack the cotangent of a result get zeros there; others may be left out of this half.
void put_zeros(const Strips& s, const Computed& computed, const Word* record, const Word* form,
               Word lacking) {
  for (Word bits = lacking, k = 0; bits; bits >>= 1, ++k) {
    if (!(bits & 1)) continue;
    const Target target(record, form, k);
    const Slots slots(s, target.entry);
    const Gradients gradients(s, target.arena);
    for (Word row = 0; row < computed.count; ++row) {
      const Word slot = slots[computed[row]];
      if (!gradients.present[slot]) std::memset(gradients.of(slot), 0, gradients.bytes);
    }
  }
}

}  // namespace

// Rows of a launch that read the same whole numbers: one of each kind is computed.

#pragma once

#include <algorithm>
#include <vector>

#include "launches.hpp"

namespace {

// Which rows of a launch are the same, by the whole numbers that they read: for each row which of the
// distinct ones it is, and for each of these an example, the first row of its kind.
struct Same {
  Word* which;
  Word* examples;

  Same(const Strips& s, const Word* launch)
      : which(s.same + launch[SAME]), examples(which + launch[ROWS]) {}
};

// Numbers pairs of numbers in the order in which they come.
class Pairs {
  struct Entry {
    Word first, second, number;
  };
  std::vector<Entry> entries;
  size_t mask = 0;

 public:
  Word count = 0;

  void begin(Word rows) {
    size_t size = 16;
    while (size < size_t(2 * rows)) size *= 2;
    entries.assign(size, {0, 0, -1});
    mask = size - 1;
    count = 0;
  }

  Word number_of(Word first, Word second) {
    uint64_t hash = (uint64_t(first) * 0x9e3779b97f4a7c15u) ^ uint64_t(second);
    hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93u;
    for (size_t at = (hash >> 32) & mask;; at = (at + 1) & mask) {
      Entry& entry = entries[at];
      if (entry.number < 0) entry = {first, second, count++};
      else if (entry.first != first || entry.second != second) continue;
      return entry.number;
    }
  }
};

// The whole number that each row reads as an operand.
class Numbers {
  const Word* hosted = nullptr;
  const char* origin = nullptr;
  Slots slots;
  Word bytes = 0;

 public:
  Numbers(const Strips& s, const Word* item, const Word* entry) : slots(s, entry) {
    if (item[0] == HOSTED) {
      hosted = s.data + entry[1];
    } else {
      origin = reinterpret_cast<const char*>(chunk_of(s, item[1], slots)[ORIGIN]);
      bytes = s.arenas[item[1] * ARENA_WORDS + BYTES];
    }
  }

  Word operator[](Word row) const {
    if (hosted) return hosted[row];
    Word number = 0;
    std::memcpy(&number, origin + slots[row] * bytes, bytes);
    return number;
  }
};

// Finds out which rows are the same; how many are not, or 0 where these are too many to be worth it.
Word find_distinct(const Strips& s, const Word* launch, const Word* record, const Word* form) {
  thread_local Pairs pairs;
  const Same same(s, launch);
  const Word rows = record[2];
  std::fill(same.which, same.which + rows, 0);
  const Word *item = form + FORM, *entry = record + LAUNCH_HEAD;
  for (Word k = 0; k < form[OPERANDS]; ++k, item += 2) {
    if (item[0] == UNIFORM) continue;
    const Numbers numbers(s, item, entry);
    entry += 3;
    pairs.begin(rows);
    for (Word row = 0; row < rows; ++row) {
      const Word before = pairs.count, number = pairs.number_of(same.which[row], numbers[row]);
      if (pairs.count > before) same.examples[number] = row;
      same.which[row] = number;
      if (100 * pairs.count > s.most_shared * rows) return 0;
    }
  }
  return pairs.count;
}

// Gives all rows the results of those that they are the same as.
void hand_out(const Strips& s, const Word* launch, const Word* record, const Word* form) {
  const Same same(s, launch);
  for (Word k = 0; k < form[TARGETS]; ++k) {
    const Target target(record, form, k);
    const Slots slots(s, target.entry);
    const Word bytes = s.arenas[target.arena * ARENA_WORDS + BYTES];
    char* origin = reinterpret_cast<char*>(chunk_of(s, target.arena, slots)[ORIGIN]);
    for (Word row = 0; row < record[2]; ++row) {
      const Word example = same.examples[same.which[row]];
      if (example != row)
        std::memcpy(origin + slots[row] * bytes, origin + slots[example] * bytes, bytes);
    }
  }
}

}  // namespace

// What a launch reads and writes, as its record says: slots of arenas, uniform values, whole numbers.

#pragma once

#include <vector>

#include "words.hpp"

namespace {

struct Arguments {
  char* pointers[2 * MOST_ITEMS];
  Word sizes[2 * MOST_ITEMS];
  bool are_rows[2 * MOST_ITEMS];
  int count = 0;

  void add(const void* pointer, Word size) {
    pointers[count] = const_cast<char*>(static_cast<const char*>(pointer));
    are_rows[count] = false;
    sizes[count++] = size;
  }

  // One number for each row.
  void add_rows(const Word* numbers, Word rows) {
    add(numbers, rows);
    are_rows[count - 1] = true;
  }

  // The same for rows that are listed, whose numbers are put together elsewhere.
  Arguments of_rows(const Word* rows, Word number, std::vector<Word>& elsewhere) const {
    Arguments some = *this;
    elsewhere.resize(count * number);
    Word* next = elsewhere.data();
    for (int k = 0; k < count; ++k) {
      if (!are_rows[k]) continue;
      const Word* all = reinterpret_cast<const Word*>(pointers[k]);
      for (Word row = 0; row < number; ++row) next[row] = all[rows[row]];
      some.pointers[k] = reinterpret_cast<char*>(next);
      some.sizes[k] = number;
      next += number;
    }
    return some;
  }

  // The same for some rows that follow each other.
  Arguments piece(Word first, Word rows) const {
    Arguments some = *this;
    for (int k = 0; k < count; ++k) {
      if (!are_rows[k]) continue;
      some.pointers[k] += first * sizeof(Word);
      some.sizes[k] = rows;
    }
    return some;
  }
};

// The rows of a piece, where a launch of so many is run in pieces of about the same size.
Word piece_of(const Strips& s, Word rows) {
  const Word pieces = std::max<Word>(1, (rows + s.piece_rows - 1) / s.piece_rows);
  return (rows + pieces - 1) / pieces;
}

// Slots of a record: its three words, as the numbers that they list.
struct Slots {
  const Word* listed;
  Word start, count;

  Slots(const Strips& s, const Word* entry)
      : listed(entry[0] == SPAN_VALUES ? nullptr : s.data + entry[1]),
        start(entry[1]),
        count(entry[2]) {}

  Word operator[](Word row) const { return listed ? listed[row] : start + row; }
  const Word* index(const Strips& s) const { return listed ? listed : s.counts + start; }
};

// The chunk that all these slots lie in; null where there is none.
const Word* chunk_of(const Strips& s, Word arena, const Slots& slots) {
  const Word* found = s.arenas + arena * ARENA_WORDS;
  const Word* chunk = s.chunks + found[FIRST] * CHUNK_WORDS;
  if (found[COUNT] == 1) return chunk;
  const Word first = slots[0];
  for (Word k = 0; k < found[COUNT]; ++k, chunk += CHUNK_WORDS) {
    if (first < chunk[START] || first >= chunk[STOP]) continue;
    if (!slots.listed) return first + slots.count <= chunk[STOP] ? chunk : nullptr;
    for (Word row = 1; row < slots.count; ++row)
      if (slots[row] < chunk[START] || slots[row] >= chunk[STOP]) return nullptr;
    return chunk;
  }
  return nullptr;
}

bool add_slots(Strips& s, Word arena, const Word* entry, Word rows, Arguments& arguments) {
  const Slots slots(s, entry);
  if (slots.count != rows) return false;
  const Word* chunk = chunk_of(s, arena, slots);
  if (!chunk) return false;
  if (!slots.listed && slots.start + rows > s.highest) s.highest = slots.start + rows;
  arguments.add(reinterpret_cast<char*>(chunk[ORIGIN]), chunk[STOP]);
  arguments.add_rows(slots.index(s), rows);
  return true;
}

// What the code of a launch takes; false where something is left to Python.
bool take(Strips& s, const Word* record, const Word* form, Arguments& arguments) {
  const Word rows = record[2];
  const Word *entry = record + LAUNCH_HEAD, *item = form + FORM;
  for (Word k = 0; k < form[OPERANDS]; ++k, item += 2) {
    if (item[0] == UNIFORM) {
      if (!s.wires[item[1]]) return false;
      arguments.add(s.wires[item[1]], 0);
      continue;
    }
    if (item[0] == HOSTED)
      arguments.add_rows(s.data + entry[1], rows);
    else if (item[0] != SLOTS || !add_slots(s, item[1], entry, rows, arguments))
      return false;
    entry += 3;
  }
  for (Word k = 0; k < form[TARGETS]; ++k, entry += 3)
    if (!add_slots(s, item[k], entry, rows, arguments)) return false;
  return true;
}

const Word* saved_rows(const Word* form) {
  return form + FORM + 2 * form[OPERANDS] + form[TARGETS];
}

Word saved_bytes(const Word* form, Word rows) {
  Word bytes = 0;
  for (Word k = 0; k < form[RESULTS]; ++k) bytes += aligned(saved_rows(form)[k] * rows);
  return bytes;
}

bool is_native(Strips& s, const Word* record, const Word* form) {
  if (!form[CODE] || record[2] > form[MOST_ROWS]) return false;
  Arguments arguments;
  if (!take(s, record, form, arguments)) return false;
  const Arguments most = arguments.piece(0, piece_of(s, record[2]));
  const Word bytes = scratch_bytes(reinterpret_cast<const Word*>(form[CODE]), most.sizes);
  if (bytes > s.scratch_most) s.scratch_most = bytes;
  if (record[2] > s.highest) s.highest = record[2];
  return true;
}

const Word* form_of(const Strips& s, Word block) { return s.forms + s.form_of[block]; }

Pass pass_of(const Strips& s, Word block) {
  return {s.sgemm, s.dgemm, s.threads, s.number, s.rows[block]};
}

Word record_words(const Strips& s, const Word* record) {
  if (record[0] == STORE_RECORD || record[0] == COPY_RECORD) return OTHER_RECORD;
  const Word* form = form_of(s, record[1]);
  const Word items = form[LISTED] + form[TARGETS];
  return record[0] == PADDED_RECORD ? PADDED_HEAD + 3 * (items + 1) : LAUNCH_HEAD + 3 * items;
}

// The entry of a target in a record, and its arena.
struct Target {
  const Word* entry;
  Word arena;

  Target(const Word* record, const Word* form, Word number)
      : entry(record + LAUNCH_HEAD + 3 * (form[LISTED] + number)),
        arena(form[FORM + 2 * form[OPERANDS] + number]) {}
};

}  // namespace

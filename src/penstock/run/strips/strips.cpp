// Runs strips: compiled launches that follow each other, forward and backward, without Python.
//
// All that a call needs lies in one structure of 64-bit words, which Python fills (words.py names
// the same words in the same order). Launches are read from the records of the native planner;
// nothing here owns memory. A launch that cannot be run here is left to Python: functions return
// the number of the launch at which they stopped.

#include "code.hpp"

#include <algorithm>
#include <vector>

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

// Words of a launch: where its record is, its rows, its block, where its saved values begin, and
// whether it is run here.
enum { AT, ROWS, BLOCK, SAVED, IS_NATIVE, LAUNCH_WORDS };

// Words of the form of a block. Behind them come two words for each operand (what it is, and which
// one), the arena of each target, and the bytes of a row of each saved value.
enum { CODE, MOST_ROWS, OPERANDS, TARGETS, LISTED, RESULTS, FORM };

// Words of an arena: its first chunk and how many there are. Of a chunk: its first slot, the first
// one behind it, and where slot 0 would be.
enum { FIRST, COUNT, ARENA_WORDS };
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
// arena, and which of the given values), then three words for each value given: what becomes of it,
// the bytes of a row (of a sum: all bytes), and those of an element. A pass has words of its own for
// each half: how many rows have gone back since Python took what they gave (or UNKNOWN, or LEFT), how
// many there is room for, and where factors or the sum begin.
enum { ADDEND, FACTOR, SUM, GIVEN_WORDS };
enum { HALF_CODE, TAKEN, READ, COTANGENTS, ADDED, GIVEN, NEEDS_SAVED, FACTORS, HALF };
enum { GONE_BACK, MOST_BACK, FACTOR_PLACES };

// What has become of a launch on the way back.
enum { FRESH, GONE, HAS_PAGE };

// Why the way back stops.
enum { OVER, PLAIN, WANTED, READY, ZEROS, ROOM, USED, BROKEN, FULL };

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
  char* saved;
  char* scratch;
  Word scratch_end;
  Gemm<float> sgemm;
  Gemm<double> dgemm;
  Word threads;
  Word number;
  Word piece_rows;
  const Word* rows;
  // found by measuring
  Word saved_bytes;
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
  Word keeps;
  // what the way back stops for
  Word why;
  Word set;
  Word other_set;
};

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

  // The same for some rows.
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

// ---- the way back ------------------------------------------------------------------------------

// Rows of a launch that follow each other, or those that are listed.
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
  void add(const Slots& slots, const Rows& chosen, const char* rows) const {
    for (Word k = 0; k < chosen.count; ++k, rows += bytes) {
      const Word slot = slots[chosen[k]];
      if (unasked && unasked[slot]) continue;
      if (!present[slot]) {
        std::memcpy(of(slot), rows, bytes);
        present[slot] = 1;
      } else if (item == 4) {
        add_all<float>(of(slot), rows, bytes);
      } else {
        add_all<double>(of(slot), rows, bytes);
      }
    }
  }
};

// The entry of a target in a record, and its arena.
struct Target {
  const Word* entry;
  Word arena;

  Target(const Word* record, const Word* form, Word number)
      : entry(record + LAUNCH_HEAD + 3 * (form[LISTED] + number)),
        arena(form[FORM + 2 * form[OPERANDS] + number]) {}
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

// Rows that lack some cotangents go with the others where zeros have no other effect; why it cannot
// be told, if so.
Word group(Strips& s, const Word* record, const Word* form, Word set, Groups& groups) {
  const Word block = record[1], rows = record[2];
  std::vector<char> sets(rows);
  Word counts[SETS] = {};
  for (Word row = 0; row < rows; ++row) {
    Word own = set_of_row(s, record, form, set, row);
    if (!own) return PLAIN;
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
void put_zeros(const Strips& s, const Word* record, const Word* form, Word lacking) {
  for (Word bits = lacking, k = 0; bits; bits >>= 1, ++k) {
    if (!(bits & 1)) continue;
    const Target target(record, form, k);
    const Slots slots(s, target.entry);
    const Gradients gradients(s, target.arena);
    for (Word row = 0; row < slots.count; ++row)
      if (!gradients.present[slots[row]]) std::memset(gradients.of(slots[row]), 0, gradients.bytes);
  }
}

const Word* given_words(const Word* half) {
  return half + HALF + half[TAKEN] + half[READ] + half[COTANGENTS] + 3 * half[ADDED];
}

// The scratch memory that a half takes for so many rows.
Word room_of(const Word* half, Word rows) {
  Word sizes[2 * MOST_ITEMS], bytes = 0;
  for (Word& size : sizes) size = rows;
  const Word* given = given_words(half);
  for (Word k = 0; k < half[GIVEN]; ++k, given += GIVEN_WORDS)
    if (given[0] != FACTOR) bytes += aligned(given[1] * (given[0] == SUM ? 1 : rows));
  return bytes + scratch_bytes(reinterpret_cast<const Word*>(half[HALF_CODE]), sizes);
}

// The first sum is written, others are added to it.
void add_to_sum(const Word* given, const Word* factors, Word k, const char* more) {
  char* sum = reinterpret_cast<char*>(factors[FACTOR_PLACES + k]);
  if (factors[GONE_BACK] == 0)
    std::memcpy(sum, more, given[1]);
  else if (given[2] == 4)
    add_all<float>(sum, more, given[1]);
  else
    add_all<double>(sum, more, given[1]);
}

// Runs one half for some rows; whether it could.
bool run_half(Strips& s, const Word* launch, const Word* record, const Word* form, const Word* half,
              const Rows& chosen) {
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
    if (chosen.listed) {
      index = picked.data() + picked.size();
      for (Word row = 0; row < rows; ++row) picked.push_back(slots[chosen[row]]);
    }
    arguments.add(gradients.values, gradients.end);
    arguments.add(index, rows);
  }
  const Word* added = item;
  const Word* given = given_words(half);
  Word* factors = s.factors + half[FACTORS];
  char* results[MOST_ITEMS];
  Word used = 0;
  for (Word k = 0; k < half[GIVEN]; ++k) {
    const Word *what = given + GIVEN_WORDS * k, bytes = what[1];
    if (what[0] == FACTOR) {
      results[k] = reinterpret_cast<char*>(factors[FACTOR_PLACES + k]) + bytes * factors[GONE_BACK];
    } else {
      results[k] = s.scratch + used;
      used += aligned(bytes * (what[0] == SUM ? 1 : rows));
    }
  }
  const auto* code = reinterpret_cast<const Word*>(half[HALF_CODE]);
  char* scratch = s.scratch + used;
  const Pass pass = pass_of(s, record[1]);
  if (run_code(code, arguments.pointers, arguments.sizes, scratch, results, pass)) return false;
  for (Word k = 0; k < half[GIVEN]; ++k)
    if (given[GIVEN_WORDS * k] == SUM) add_to_sum(given + GIVEN_WORDS * k, factors, k, results[k]);
  factors[GONE_BACK] += rows;
  for (Word k = 0; k < half[ADDED]; ++k, added += 3) {
    const Slots slots(s, record + LAUNCH_HEAD + 3 * added[0]);
    Gradients(s, added[1]).add(slots, chosen, results[added[2]]);
  }
  return true;
}

// Whether a half can run now; why not, if it cannot.
Word look_for_half(Strips& s, Word number, Word block, Word set, Word rows) {
  const Word found = s.half_of[block * (SETS + 1) + 1 + set];
  if (found == LEFT) return PLAIN;
  if (found == UNKNOWN) {
    s.set = set;
    return WANTED;
  }
  const Word* half = s.halves + found;
  if (half[NEEDS_SAVED] && s.gone[number] == GONE) return USED;
  const Word* factors = s.factors + half[FACTORS];
  if (factors[GONE_BACK] == LEFT) return PLAIN;
  s.set = found;
  if (factors[GONE_BACK] == UNKNOWN) return READY;
  if (factors[GONE_BACK] + rows > factors[MOST_BACK]) return FULL;
  s.scratch_most = room_of(half, piece_of(s, rows));
  return s.scratch_most > s.scratch_end ? ROOM : OVER;
}

// Takes one launch back; why it could not be done here, if so: but for BROKEN nothing has happened
// then.
Word take_back(Strips& s, Word number, const Word* record, const Word* form) {
  const Word block = record[1], results = s.half_of[block * (SETS + 1)];
  if (!results) return OVER;
  if (s.gone[number] == HAS_PAGE || results < 0) return PLAIN;
  Word lacking = 0, why = OVER;
  const Word set = held_set(s, record, form, results, lacking);
  if (!set) return OVER;
  Groups groups;
  if (lacking)
    why = group(s, record, form, set, groups);
  else
    groups.add(set, {record[2]});
  for (int k = 0; k < groups.count && why == OVER; ++k)
    why = look_for_half(s, number, block, groups.sets[k], groups.rows[k].count);
  if (why != OVER) return why;
  if (lacking) put_zeros(s, record, form, lacking);
  bool has_begun = false;
  for (int k = 0; k < groups.count; ++k) {
    const Word* half = s.halves + s.half_of[block * (SETS + 1) + 1 + groups.sets[k]];
    const Word* launch = s.launches + number * LAUNCH_WORDS;
    const Rows& rows = groups.rows[k];
    const Word size = piece_of(s, rows.count);
    for (Word begin = 0; begin < rows.count; begin += size, has_begun = true) {
      const Rows piece = rows.piece(begin, std::min(size, rows.count - begin));
      if (!run_half(s, launch, record, form, half, piece)) return has_begun ? BROKEN : PLAIN;
    }
    if (half[NEEDS_SAVED] && !s.keeps) s.gone[number] = GONE;
  }
  return OVER;
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
  s.saved_bytes = s.natives = s.scratch_most = s.highest = 0;
  Word number = 0;
  for (Word at = 0; at < s.heads_end; ++number) {
    const Word* record = s.heads + at;
    Word* launch = s.launches + number * LAUNCH_WORDS;
    launch[AT] = at, launch[IS_NATIVE] = 0, launch[SAVED] = s.saved_bytes;
    at += record_words(s, record);
    if (record[0] != LAUNCH_RECORD) continue;
    const Word* form = form_of(s, record[1]);
    launch[ROWS] = record[2], launch[BLOCK] = record[1];
    launch[IS_NATIVE] = is_native(s, record, form);
    if (!launch[IS_NATIVE]) continue;
    s.saved_bytes += saved_bytes(form, record[2]);
    ++s.natives;
  }
  return number;
}

// Runs launches from one number up to another; the number of the one at which it stops, as it has
// failed or is not run here.
extern "C" Word penstock_forward(Strips* strips, Word from, Word to) {
  Strips& s = *strips;
  for (Word number = from; number < to; ++number) {
    const Word* launch = s.launches + number * LAUNCH_WORDS;
    if (!launch[IS_NATIVE]) return number;
    const Word *record = s.heads + launch[AT], *form = form_of(s, record[1]);
    Arguments arguments;
    take(s, record, form, arguments);
    char* results[MOST_ITEMS];
    char* place = s.saved + launch[SAVED];
    for (Word k = 0; k < form[RESULTS]; ++k) {
      results[k] = place;
      place += aligned(saved_rows(form)[k] * record[2]);
    }
    const auto* code = reinterpret_cast<const Word*>(form[CODE]);
    const Pass pass = pass_of(s, record[1]);
    const Word rows = record[2], size = piece_of(s, rows);
    for (Word first = 0; first < rows; first += size) {
      Arguments piece = arguments.piece(first, std::min(size, rows - first));
      if (run_code(code, piece.pointers, piece.sizes, s.scratch, results, pass)) return number;
      for (Word k = 0; k < form[RESULTS]; ++k) results[k] += saved_rows(form)[k] * size;
    }
  }
  return to;
}

// Takes launches back, the one before `from` first, down to `to`; the number of the one at which it
// stops, which has not begun, or -1 where all have gone.
extern "C" Word penstock_backward(Strips* strips, Word from, Word to) {
  Strips& s = *strips;
  for (Word number = from - 1; number >= to; --number) {
    const Word* record = s.heads + s.launches[number * LAUNCH_WORDS + AT];
    const Word* form = form_of(s, record[1]);
    s.why = take_back(s, number, record, form);
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

// Rows that are contracted at once: they stay in the caches while all columns are multiplied.
constexpr Word CONTRACTED_ROWS = 768;

// out = first' second, or added to it: rows of both lie `apart` elements from each other, those of
// the result without gaps. There must be a vector of columns of `second`.
extern "C" void penstock_contract(Word bytes, const void* first, Word first_apart, Word columns,
                                  const void* second, Word second_apart, Word second_columns,
                                  Word rows, void* out, Word is_added, Word threads) {
  const auto contract = [=](auto zero) {
    using T = decltype(zero);
    for (Word row = 0; row < rows; row += CONTRACTED_ROWS) {
      const Word some = std::min(CONTRACTED_ROWS, rows - row);
      const Operands<T> given{static_cast<const T*>(first) + row * first_apart,
                              1,
                              first_apart,
                              static_cast<T*>(out),
                              second_columns,
                              nullptr,
                              columns,
                              is_added || row > 0};
      const Matrix<T> matrix{static_cast<const T*>(second) + row * second_apart, second_apart, false,
                             some, second_columns};
      multiply<T>(given, matrix, nullptr, threads);
    }
  };
  bytes == sizeof(float) ? contract(0.0f) : contract(0.0);
}

// Whether products of many rows are fast here, too.
extern "C" int penstock_is_fast() { return IS_FAST; }

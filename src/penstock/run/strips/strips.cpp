// Runs strips: compiled launches that follow each other, forward and backward, without Python.
//
// All that a call needs lies in one structure of 64-bit words, which Python fills (words.py names
// the same words in the same order). Launches are read from the records of the native planner;
// nothing here owns memory. A launch that cannot be run here is left to Python: functions return
// the number of the launch at which they stopped.

#include "code.hpp"

#include <algorithm>
#include <new>
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

// ---- rows that are the same ----------------------------------------------------------------------

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

// ---- the way back ------------------------------------------------------------------------------

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

// The cotangents of rows that are the same become one, of the example; which results some examples
// have none of.
Word merge_cotangents(const Strips& s, const Word* launch, const Word* record, const Word* form,
                      Word set) {
  const Same same(s, launch);
  Word lacking = 0;
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
    for (Word distinct = 0; distinct < launch[DISTINCT]; ++distinct)
      if (!gradients.present[slots[same.examples[distinct]]]) lacking |= Word(1) << k;
  }
  return lacking;
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
Word group(Strips& s, const Computed& computed, const Word* record, const Word* form, Word set,
           Groups& groups) {
  const Word block = record[1], rows = computed.count;
  std::vector<char> sets(rows);
  Word counts[SETS] = {};
  for (Word row = 0; row < rows; ++row) {
    Word own = set_of_row(s, record, form, set, computed[row]);
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

const Word* given_words(const Word* half) {
  return half + HALF + half[TAKEN] + half[READ] + half[COTANGENTS] + 3 * half[ADDED];
}

const Word* collected_words(const Word* half) {
  return given_words(half) + GIVEN_WORDS * half[GIVEN];
}

// The scratch memory that a half takes for so many rows of a launch.
Word room_of(const Strips& s, const Word* record, const Word* form, const Word* half, Word rows) {
  Word sizes[2 * MOST_ITEMS], bytes = 0, *size = sizes;
  for (Word k = 0; k < half[TAKEN]; ++k) *size++ = record[2], *size++ = rows;
  for (Word k = 0; k < half[READ]; ++k) *size++ = 0;
  const Word* result = half + HALF + half[TAKEN] + half[READ];
  for (Word k = 0; k < half[COTANGENTS]; ++k) {
    *size++ = Gradients(s, Target(record, form, result[k]).arena).end;
    *size++ = rows;
  }
  const Word* given = given_words(half);
  for (Word k = 0; k < half[GIVEN]; ++k, given += GIVEN_WORDS)
    if (given[0] != FACTOR) bytes += aligned(given[1] * (given[0] == SUM ? 1 : rows));
  return bytes + scratch_bytes(reinterpret_cast<const Word*>(half[HALF_CODE]), sizes);
}

// Where the values lie that a half gives for the rows behind those that wait.
struct Places {
  char* of[MOST_ITEMS];
  Word used = 0;

  Places(const Strips& s, const Word* half, Word rows) {
    const Word *given = given_words(half), *factors = s.factors + half[FACTORS];
    char* memory = reinterpret_cast<char*>(factors[MEMORY]);
    for (Word k = 0; k < half[GIVEN]; ++k, given += GIVEN_WORDS) {
      if (given[0] == FACTOR) {
        of[k] = memory + given[1] * factors[WAITING];
        memory += aligned(given[1] * factors[MOST_WAITING]);
      } else {
        of[k] = s.scratch + used;
        used += aligned(given[1] * (given[0] == SUM ? 1 : rows));
      }
    }
  }
};

// ---- gradients of uniform values ------------------------------------------------------------------

// Rows that are contracted at once: they stay in the caches while all columns are multiplied.
constexpr Word CONTRACTED_ROWS = 768;

// Rows of numbers that lie `apart` from each other.
template <typename T>
struct Factor {
  const T* first;
  Word apart, columns;
};

// out = first' second, or added to it; rows of the result lie without gaps. There must be a vector of
// columns of `second`.
template <typename T>
void contract(const Factor<T>& first, const Factor<T>& second, Word rows, T* out, bool is_added,
              Word threads) {
  for (Word row = 0; row < rows; row += CONTRACTED_ROWS) {
    const Word some = std::min(CONTRACTED_ROWS, rows - row);
    const Operands<T> given{first.first + row * first.apart,
                            1,
                            first.apart,
                            out,
                            second.columns,
                            nullptr,
                            first.columns,
                            is_added || row > 0};
    const Matrix<T> matrix{second.first + row * second.apart, second.apart, false, some,
                           second.columns};
    multiply<T>(given, matrix, nullptr, threads);
  }
}

// The same for any number of columns, by a BLAS where that is as fast.
template <typename T>
void contract_any(const Factor<T>& first, const Factor<T>& second, Word rows, T* out, bool is_added,
                  Gemm<T> gemm, Word threads) {
  if (IS_FAST && is_wide<T>(second.columns))
    return contract(first, second, rows, out, is_added, threads);
  const T one = 1, begin = is_added;
  gemm("N", "T", &second.columns, &first.columns, &rows, &one, second.first, &second.apart,
       first.first, &first.apart, &begin, out, &second.columns);
}

// Rows are added up some at a time: sums of sums lose less.
template <typename T>
void add_rows(const T* rows, Word count, Word columns, T* out, bool is_added) {
  constexpr Word SOME_ROWS = 32, SOME_COLUMNS = 64;
  if (!is_added) std::memset(out, 0, columns * sizeof(T));
  for (Word column = 0; column < columns; column += SOME_COLUMNS) {
    const Word width = std::min(SOME_COLUMNS, columns - column);
    for (Word row = 0; row < count; row += SOME_ROWS) {
      T sums[SOME_COLUMNS] = {};
      for (Word k = row; k < std::min(row + SOME_ROWS, count); ++k)
        for (Word c = 0; c < width; ++c) sums[c] += rows[k * columns + column + c];
      for (Word c = 0; c < width; ++c) out[column + c] += sums[c];
    }
  }
}

// Rows are added to those of a table; whether it has all these.
template <typename T>
bool add_to_table(const T* rows, const Word* index, Word count, Word columns, Word table_rows,
                  Word skipped, T* table) {
  for (Word k = 0; k < count; ++k, rows += columns) {
    if (index[k] < 0 || index[k] >= table_rows) return false;
    if (index[k] == skipped) continue;
    T* to = table + index[k] * columns;
    for (Word c = 0; c < columns; ++c) to[c] += rows[c];
  }
  return true;
}

// Adds what some rows give to a gradient; whether that could be done.
template <typename T>
bool collect(const Strips& s, const Word* item, const Places& places, Word rows, Gemm<T> gemm) {
  Word* gradient = s.uniform_gradients + UNIFORM_WORDS * item[GRADIENT];
  T* out = reinterpret_cast<T*>(gradient[PLACE]);
  const bool is_added = gradient[IS_WRITTEN];
  gradient[IS_WRITTEN] = true;
  const T* first = reinterpret_cast<const T*>(places.of[item[FIRST_VALUE]]);
  const char* second = places.of[item[SECOND_VALUE]];
  const Word count = rows * item[ENTRIES], columns = item[COLUMNS];
  switch (item[HOW]) {
    case WHOLE_SUM:
      add_rows(first, 1, columns, out, is_added);
      return true;
    case SUM_OF_ROWS:
      add_rows(first, count, columns, out, is_added);
      return true;
    case PRODUCT_OF_FACTORS:
      contract_any<T>({first, columns, columns},
                      {reinterpret_cast<const T*>(second), item[MORE], item[MORE]}, count, out,
                      is_added, gemm, s.threads);
      return true;
    default:
      if (!is_added) std::memset(out, 0, item[MORE] * columns * sizeof(T));
      return add_to_table(first, reinterpret_cast<const Word*>(second), count, columns, item[MORE],
                          item[SKIPPED], out);
  }
}

// The same for all that is collected of sums, or of factors.
bool collect_all(const Strips& s, const Word* half, const Places& places, Word rows, bool are_sums) {
  const Word* item = collected_words(half);
  for (Word k = 0; k < half[COLLECTED]; ++k, item += COLLECTED_WORDS) {
    if ((item[HOW] == WHOLE_SUM) != are_sums) continue;
    if (!(item[ITEM] == sizeof(float) ? collect<float>(s, item, places, rows, s.sgemm)
                                      : collect<double>(s, item, places, rows, s.dgemm)))
      return false;
  }
  return true;
}

// Contracts the factors that wait; whether it could.
bool collect_waiting(const Strips& s, const Word* half) {
  Word* factors = s.factors + half[FACTORS];
  const Word rows = factors[WAITING];
  if (rows <= 0) return true;
  factors[WAITING] = 0;
  return collect_all(s, half, Places(s, half, 0), rows, false);
}

// ---- halves -------------------------------------------------------------------------------------

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
  if (launch[DISTINCT]) {
    why = look_for_half(s, number, record, form, set, computed.count);
    if (why != OVER) return why;
    lacking = merge_cotangents(s, launch, record, form, set);
  }
  Groups groups;
  if (lacking)
    why = group(s, computed, record, form, set, groups);
  else
    groups.add(set, {computed.count});
  for (int k = 0; k < groups.count && why == OVER; ++k)
    why = look_for_half(s, number, record, form, groups.sets[k], groups.rows[k].count);
  if (why != OVER) return why;
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

// ---- forward ------------------------------------------------------------------------------------

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

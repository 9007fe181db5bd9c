// What halves give for the gradients of uniform values: sums, and factors that wait for a contraction.

#pragma once

#include <algorithm>

#include "cotangents.hpp"

namespace {

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

}  // namespace

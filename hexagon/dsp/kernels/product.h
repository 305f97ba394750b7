/* Products of a tile of 32 packed weight rows with up to eight activation columns.
 *
 * Each weight vector is fetched and unpacked once for all columns of a call. A column's result
 * is scalar/weight.rs `dot_row` of every row, whatever the other columns are: integers are
 * exact inside a block, and across blocks each lane adds in ascending order. */
#ifndef TANDEM_PRODUCT_H
#define TANDEM_PRODUCT_H

#include "activation.h"
#include "float.h"

/* Columns one call may take: what fits the vector registers. */
uint32_t product_columns(uint32_t dtype);

/* out[c] lane r = row r of the tile times column c, for `columns` from 1 to
 * product_columns(dtype). `width` values a row. */
void product_tile(uint32_t dtype, const uint8_t *tile, uint32_t width, const struct column *x, uint32_t columns,
                  floats *out);

/* The values of one row of a tile: scalar/weight.rs `dequantize`. */
void packed_row(uint32_t dtype, const uint8_t *tile, uint32_t lane, uint32_t width, float *out);

#endif

// The paged pool: one layer's K (or V) is [blocks][kv_heads][16][head_dim].
#pragma once

#include "device.cuh"

constexpr unsigned BLOCK_TOKENS = 16;

/// The row of `head_dim` values of a token of a block.
__device__ __forceinline__ size_t pool_row(unsigned block, unsigned kv_head, unsigned token, unsigned kv_heads) {
    return (size_t{block} * kv_heads + kv_head) * BLOCK_TOKENS + token;
}

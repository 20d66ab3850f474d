// SPDX-License-Identifier: BSD-3-Clause
//
// What the CPU backend hands to a kernel, generated or generic. Declared once: OEQ_DECLARE_AND_QUOTE declares for this
// library and keeps the same text for the head of generated sources.
#pragma once

#define OEQ_DECLARE_AND_QUOTE(name, ...) \
  __VA_ARGS__                            \
  constexpr char name[] = #__VA_ARGS__

namespace oeq::cpu {

// Phases run one after the other; the pieces of one phase (`item` of `items`) run in any order and in parallel.
//   pack     rows of nodes, and shared weights, into the kernel's own layout
//   send     convolution: gradients of one sender's features, of its edges' L2 and weights
//   receive  convolution: one receiver's features
//   tiles    as send, but in the order of the receivers; a sender's gradient goes to its row in the item's tile
//   gather   after tiles: adds each sender's rows in all tiles, in the items' order
//   rows     tensor product: everything of one row
//   reduce   shared weights: adds the partial gradients of all items, in their order
//
// Task: names as in the mathematics: out = f(x, y, w); z is the cotangent of out; xd, yd, wd are those of the gradients
// gx, gy, gw; gz is the gradient with respect to z. `packed_*` are the operands in the kernel's own layout, or the
// operands themselves where the layouts agree. `*_start` [nodes + 1] delimits each node's segment in `*_order` (null:
// edges lie in that order); `*_cut` [items + 1] delimits each item's nodes (rows, for a tensor product). `partial`
// [partials, packed weights] belongs to shared weights, one row for each item of send, tiles or rows. `work` is the
// running thread's own. Where there are tiles (`tile_row` is not null): item i of phase tiles takes positions
// `tile_cut`[i] on in the order of the receivers; the edge at position k adds to row `tile_row`[k] of `tile`; the item
// owns rows `tile_start`[i] on; sender n's rows are `sender_rows`[`sender_rows_start`[n]] on, ascending.
OEQ_DECLARE_AND_QUOTE(
    kTaskSource, enum Phase{kPack, kSend, kReceive, kRows, kReduce, kTiles, kGather};

    struct Task {
      const void *x, *y, *w, *z, *xd, *yd, *wd;
      void *out, *gx, *gy, *gw, *gz;
      long long products, nodes;
      void *packed_x, *packed_xd, *packed_z, *packed_w, *packed_wd;
      const void *receivers, *senders;
      const void *receiver_order, *sender_order;
      const long long *receiver_start, *sender_start;
      const long long *receiver_cut, *sender_cut;
      const int *tile_row, *sender_rows;
      const long long *tile_cut, *tile_start, *sender_rows_start;
      void *tile;
      void *partial;
      void *work;
      const void *tables;
      long long item, items, partials;
      int phase;
    };);

using KernelFunction = void(const Task *task);

}  // namespace oeq::cpu

// SPDX-License-Identifier: BSD-3-Clause
//
// OeqCall: one call of an op, as the core hands it to a kernel and as generated CPU code receives it. Plain C, so that
// generated sources can repeat the declaration. Increase OEQ_CALL_VERSION with every change of its layout: the version
// is part of every image's key.
#ifndef OEQ_CALL_H
#define OEQ_CALL_H

#include <stdint.h>

#define OEQ_CALL_VERSION 2

// Names as in the ops' definitions: L3 = TensorProduct(L1, L2, W). `grad` is a cotangent, `dgrad` the cotangent of a
// gradient (double backward). Pointers that an op does not have are null; see operands.cc for the order of operands.
//
//   op              reads                                    writes
//   forward         L1 L2 W                                  L3
//   backward        L1 L2 W L3_grad                          L1_grad L2_grad W_grad
//   double_backward L1 L2 W L3_grad L1_dgrad L2_dgrad W_dgrad  L1_grad L2_grad W_grad L3_dgrad
//
// Shapes, row-major: tensor product: L1 [rows, L1_dim], L2 [rows, L2_dim], L3 [rows, L3_dim]. Convolution: L1 [nodes,
// L1_dim], L2 [edges, L2_dim], L3 [nodes, L3_dim]; L3[receivers[e]] += product of L1[senders[e]] and L2[e]. W is
// [weight_numel] if shared, else one row per product. Gradients have the shapes of what they are gradients of. Writes
// cover whole arrays; the memory that comes in is not initialised.
//
// Symmetric contraction: forward reads L1 [rows, features, channels], W [elements, paths, channels] and the rows'
// elements, and writes L3 [rows, outputs, channels]; backward also reads L3_grad and writes L1_grad alone.
typedef struct OeqCall {
  int64_t products;  // rows of a tensor product or contraction, edges of a convolution
  int64_t nodes;     // convolution: rows of L1 and L3; contraction: elements; tensor product: 0
  const void *L1, *L2, *W, *L3_grad, *L1_dgrad, *L2_dgrad, *W_dgrad;
  void *L3, *L1_grad, *L2_grad, *W_grad, *L3_dgrad;
  const void *receivers;       // convolution: [edges] of the payload's idx_dtype (the operand OEQ calls rows);
                               // contraction: int32 [rows], each row's element
  const void *senders;         // convolution: [edges] (the operand OEQ calls cols)
  const void *sender_order;    // convolution: permutation of the edges that sorts senders; null where not given
  int64_t sender_order_count;  // length of that operand (1 where it is OEQ's dummy)
  void *workspace;             // convolution: scratch of workspace_bytes, contents undefined
  int64_t workspace_bytes;
  int64_t channels;  // contraction
  // For generated code only, set by the CPU backend for each piece of work that it runs:
  int64_t item, items;  // this piece of work and how many there are
  int32_t phase;        // which of the kernel's passes, 0 first
  int32_t reserved;
  void *scratch;       // memory that the CPU backend gives to this call, shared by its phases
  const void *tables;  // run-time coupling tables of the generic kernel; null for generated code
} OeqCall;

// The symbol that a generated CPU library exports.
typedef void OeqKernelFunction(const OeqCall *call);
#define OEQ_KERNEL_SYMBOL "oeq_kernel"

#endif  // OEQ_CALL_H

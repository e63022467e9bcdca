/* The CUDA backend: the table behind kernels_backend("cuda").
 *
 * THEORY.  Operations are queued on one stream of the first device and return at once; download
 * and sync wait for all, drawn for its own results.  What a step uploads goes through two images in
 * turn, copied on a stream of its own while the step before runs (kernels/cuda/state.h); so are the
 * results of draws, while the step after runs.  Rows of families get their tokens from the draws
 * where these are: launch_split() finds those that live and moves them together, so that the
 * operations after it see rows as any other.  Only products run over all rows that may live, since
 * their row count is the host's.
 * Residual stream, q, k, v, gate, up and logits are f32; operands, weights and the KV cache are
 * bf16 (kernels/cuda/launch.h has the layouts); dense products are cuBLASLt's.
 *
 * With weights fp8 (compute capability 8.9 and later) the layers' matrices are E4M3 with a scale
 * for each output, and operands have an fp8 side with a scale for each row beside the bf16 one;
 * embedding and output layer stay bf16 (kernels/cuda/weights.h).
 *
 * Between batch_begin and batch_end the same operations come in the same order for every step of
 * one shape: a shape's second step is recorded into a graph, and further ones run the graph
 * (kernels/cuda/forward.c).  Shapes are buckets of row counts; what is really live is counted in
 * device memory.
 *
 * isa: "bf16", and "invariant", where one algorithm serves all row counts of a product, so that a
 * row's result doesn't depend on how many others there are.  Attention, norms and draws never do.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include "kernels/kernels.h"

const struct kernels *cuda_kernels(void);

#endif

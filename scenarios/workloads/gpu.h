/* The CUDA calls of a rank, through whatever libcudart.so.12 is found (beside the program: cudart-sim). Without --mode
 * enqueue or graph it is never loaded, and none of these is called. */
#ifndef WORKLOADS_GPU_H
#define WORKLOADS_GPU_H

#include "cudart.h"

void gpu_open(void); /* and makes NCCL only enqueue, too */
cudaStream_t gpu_stream(void);
void gpu_kernel(int ms, cudaStream_t stream);
void gpu_wait(cudaStream_t stream);
void gpu_capture(cudaStream_t stream);
cudaGraphExec_t gpu_captured(cudaStream_t stream);
void gpu_launch(cudaGraphExec_t graph, cudaStream_t stream);

#endif

// Makes known numbers of CUDA runtime calls and prints them as `name count bytes`, for comparison with what was recorded.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                      \
    do {                                                                                 \
        cudaError_t error = (call);                                                      \
        if (error != cudaSuccess) {                                                      \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));               \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

__global__ void add(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1;
}

int main() {
    const int n = 1 << 20, launches = 5000, copies = 700, fills = 300, waits = 400, replays = 50;
    const size_t bytes = n * sizeof(float);
    float *device, *host;
    cudaStream_t stream;
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaMallocHost(&host, bytes));
    CHECK(cudaStreamCreate(&stream));
    for (int i = 0; i < fills; i++) CHECK(cudaMemsetAsync(device, 0, bytes, stream));
    for (int i = 0; i < copies; i++) CHECK(cudaMemcpyAsync(device, host, bytes / 2, cudaMemcpyHostToDevice, stream));
    for (int i = 0; i < launches; i++) add<<<n / 256, 256, 0, stream>>>(device, n);
    for (int i = 0; i < waits; i++) CHECK(cudaStreamSynchronize(stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 10; i++) add<<<n / 256, 256, 0, stream>>>(device, n);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < replays; i++) CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaDeviceSynchronize());
    printf("cudaMalloc 1 %zu\n", bytes);
    printf("cudaMemsetAsync %d %zu\n", fills, fills * bytes);
    printf("cudaMemcpyAsync %d %zu\n", copies, copies * bytes / 2);
    printf("cudaLaunchKernel %d 0\n", launches + 10);
    printf("cudaStreamSynchronize %d 0\n", waits);
    printf("cudaGraphLaunch %d 0\n", replays);
    printf("cudaDeviceSynchronize 1 0\n");
    return 0;
}

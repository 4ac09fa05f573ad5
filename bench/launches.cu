// Times bare launches of a small kernel, beside `ferroflow devices`:
// nvcc -O2 -lcuda bench/launches.cu -o launches && ./launches

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

__global__ void relu(float *to, const float *from, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i] < 0 ? 0 : from[i];
}

int main() {
    const int n = 256, chain = 1000;
    float *x, *y;
    cudaStream_t stream;
    cudaMalloc(&x, n * sizeof(float));
    cudaMalloc(&y, n * sizeof(float));
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    std::vector<double> times;
    for (int round = 0; round < 21; round++) {
        auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < chain; i++) relu<<<1, n, 0, stream>>>(i % 2 ? x : y, i % 2 ? y : x, n);
        cudaStreamSynchronize(stream);
        std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
        if (round > 0) times.push_back(time.count() / chain);
    }
    std::sort(times.begin(), times.end());
    printf("bare launch: %.2f us\n", times[times.size() / 2]);
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < chain; i++) relu<<<1, n, 0, stream>>>(i % 2 ? x : y, i % 2 ? y : x, n);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
    times.clear();
    for (int round = 0; round < 21; round++) {
        auto start = std::chrono::steady_clock::now();
        cudaGraphLaunch(ready, stream);
        cudaStreamSynchronize(stream);
        std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
        if (round > 0) times.push_back(time.count() / chain);
    }
    std::sort(times.begin(), times.end());
    printf("in a CUDA graph: %.2f us\n", times[times.size() / 2]);
}

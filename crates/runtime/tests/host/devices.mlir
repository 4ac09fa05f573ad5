// Devices: streams, events, memory, modules and launches, on streams that are threads.

// PRINTS: DenseHostTensor dtype = F32, shape = [4], values = [2.500000e+00, 2.500000e+00, 2.500000e+00, 2.500000e+00]
func @axpy() {
  %ordinal = tfrt.constant.i32 0
  %device = tfrt_gpu.device.get HOST_STREAM, %ordinal
  %context = tfrt_gpu.context.create %device
  %stream = tfrt_gpu.stream.create %context
  %allocator = tfrt_gpu.allocator.create %context
  %module = tfrt_gpu.module.load %context {data = ".version 6.0\n.target sm_60\n.visible .entry axpy_f32(.param .u32 n, .param .f32 a, .param .u64 x, .param .u64 y) { ret; }\00"}
  %func = tfrt_gpu.module.get_function %module {name = "axpy_f32"}
  %ch0 = tfrt.new.chain
  %x_host = tfrt_dht.create_uninitialized_tensor.f32.1 [4 : i64]
  %ch1 = tfrt_dht.fill_tensor_with_constant.f32 %x_host, %ch0 1.0 : f32
  %x_buffer, %ch2 = tfrt_dht.get_buffer %x_host, %ch1
  %size = tfrt.constant.i64 16
  %x = tfrt_gpu.mem.allocate %allocator, %stream, %size, %ch2
  %y = tfrt_gpu.mem.allocate %allocator, %stream, %size, %ch2
  %ch3 = tfrt_gpu.mem.copy %x, %x_buffer, %stream, %ch2 : !tfrt_gpu.buffer, !ht.host_buffer
  %two = tfrt.constant.f32 2.0
  %ch4 = tfrt_gpu.mem.set %y, %two, %stream, %ch3 : f32
  %four = tfrt.constant.i32 4
  %half = tfrt.constant.f32 0.5
  %one = tfrt.constant.ui64 1
  %none = tfrt.constant.ui32 0
  %ch5 = tfrt_gpu.function.launch %stream, %func, blocks in (%one, %one, %one), threads in (%one, %one, %one), %none, %ch4, args(%four, %half, %x, %y) : (i32, f32, !tfrt_gpu.buffer, !tfrt_gpu.buffer)
  %ch6 = tfrt_gpu.mem.copy %x_buffer, %y, %stream, %ch5 : !ht.host_buffer, !tfrt_gpu.buffer
  %ch7 = tfrt_gpu.mem.deallocate %y, %stream, %ch6
  %ch8 = tfrt_gpu.stream.synchronize %stream, %ch7
  %ch9 = tfrt_dht.print_tensor %x_host, %ch8
  tfrt.return
}

// PRINTS: DenseHostTensor dtype = I32, shape = [2], values = [13, 13]
func @events() {
  %ordinal = tfrt.constant.i32 1
  %device = tfrt_gpu.device.get HOST_STREAM, %ordinal
  %context = tfrt_gpu.context.primary %device
  %first = tfrt_gpu.stream.create %context
  %same = tfrt_gpu.stream.get_context %first
  %second = tfrt_gpu.stream.create %same
  %allocator = tfrt_gpu.allocator.create %context
  %event = tfrt_gpu.event.create %context
  %ch0 = tfrt.new.chain
  %size = tfrt.constant.i64 8
  %buffer = tfrt_gpu.mem.allocate %allocator, %first, %size, %ch0
  %value = tfrt.constant.i32 13
  %ch1 = tfrt_gpu.mem.set %buffer, %value, %first, %ch0 : i32
  %ch2 = tfrt_gpu.event.record %event, %first, %ch1
  %ch3 = tfrt_gpu.stream.wait %second, %event, %ch2
  %tensor = tfrt_dht.create_uninitialized_tensor.i32.1 [2 : i64]
  %host, %ch4 = tfrt_dht.get_buffer %tensor, %ch3
  %ch5 = tfrt_gpu.mem.copy %host, %buffer, %second, %ch4 : !ht.host_buffer, !tfrt_gpu.buffer
  %done = tfrt_gpu.event.create %context
  %ch6 = tfrt_gpu.event.record %done, %second, %ch5
  %ch7 = tfrt_gpu.stream.synchronize %second, %ch6
  %ch8 = tfrt_gpu.event.synchronize %done, %ch7
  %ch9 = tfrt_dht.print_tensor %tensor, %ch8
  tfrt.return
}

// PRINTS: 'small_buffer' returned <<error: tfrt_gpu.tensor.make failed: buffer_size (64) is not equal to the number of elements in shape ([5, 4]) times element size (4)>>
func @small_buffer() -> !t.tensor {
  %ordinal = tfrt.constant.i32 0
  %device = tfrt_gpu.device.get HOST_STREAM, %ordinal
  %context = tfrt_gpu.context.create %device
  %stream = tfrt_gpu.stream.create %context
  %allocator = tfrt_gpu.allocator.create %context
  %ch = tfrt.new.chain
  %size = tfrt.constant.i64 64
  %buffer = tfrt_gpu.mem.allocate %allocator, %stream, %size, %ch
  %shape = ts.build_shape [5 : i64, 4 : i64]
  // expected-error @+1 {{tfrt_gpu.tensor.make failed}}
  %tensor = tfrt_gpu.tensor.make.i32 %buffer, %shape, %ch
  tfrt.return %tensor : !t.tensor
}

// PRINTS: 'bad_name' returned <<error: named symbol not found: the module has no function 'Foo'>>
func @bad_name() -> !tfrt_gpu.function {
  %ordinal = tfrt.constant.i32 0
  %device = tfrt_gpu.device.get HOST_STREAM, %ordinal
  %context = tfrt_gpu.context.create %device
  %module = tfrt_gpu.module.load %context {data = ".version 6.0\n.visible .entry empty() { ret; }\00"}
  // expected-error @+1 {{named symbol not found}}
  %function = tfrt_gpu.module.get_function %module {name = "Foo\00"}
  tfrt.return %function : !tfrt_gpu.function
}

// PRINTS: 'no_device' returned <<error: there is no HOST_STREAM device 9: the machine has 4>>
func @no_device() -> !tfrt_gpu.device {
  %ordinal = tfrt.constant.i32 9
  // expected-error @+1 {{there is no HOST_STREAM device}}
  %device = tfrt_gpu.device.get HOST_STREAM, %ordinal
  tfrt.return %device : !tfrt_gpu.device
}

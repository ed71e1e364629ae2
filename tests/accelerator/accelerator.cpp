// A software accelerator of two devices that is as asynchronous as a real one, so that mistakes show.
//
// A stream is a thread. Copies from page-locked memory start late, and read whatever lies there by then. Blocks of
// device memory are cached per stream, and filled with rubbish when they are handed out. Page-locked memory comes from
// torch's own caching host allocator; other memory may be registered, and is then protected by nobody.
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <thread>

namespace {

using c10::Device, c10::DeviceIndex, c10::Stream, c10::StreamId;
constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kDevices = 2;
std::atomic<int64_t> late_us{1000};

void sleep_us(int64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  void happen() { std::lock_guard g(mutex); done = true; changed.notify_all(); }
  void wait() { std::unique_lock g(mutex); changed.wait(g, [this] { return done; }); }
  bool query() { std::lock_guard g(mutex); return done; }
};
using EventPtr = std::shared_ptr<Event>;

struct Queue {  // what a stream has to do, one after the other, in a thread of its own
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  Queue() { std::thread([this] { run(); }).detach(); }
  void run() {
    for (;;) {
      std::unique_lock g(mutex);
      changed.wait(g, [this] { return !work.empty(); });
      auto task = std::move(work.front());
      work.pop_front();
      g.unlock();
      task();
    }
  }
  void push(std::function<void()> task) { std::lock_guard g(mutex); work.push_back(std::move(task)); changed.notify_one(); }
  EventPtr mark() { auto event = std::make_shared<Event>(); push([event] { event->happen(); }); return event; }
};

// Nothing global is ever destroyed: the threads run until the process ends.
std::mutex& queues_mutex = *new std::mutex;
auto& queues = *new std::map<std::pair<DeviceIndex, StreamId>, Queue*>;
std::atomic<StreamId> last_stream{0};
thread_local DeviceIndex current_device = 0;
thread_local StreamId current_streams[kDevices] = {0, 0};  // 0 is the default stream

Queue& queue_of(DeviceIndex device, StreamId stream) {
  std::lock_guard g(queues_mutex);
  auto& queue = queues[{device, stream}];
  if (!queue) queue = new Queue;
  return *queue;
}
Queue& queue_of(const Stream& stream) { return queue_of(stream.device_index(), stream.id()); }
Queue& current_queue(DeviceIndex device) { return queue_of(device, current_streams[device]); }
Stream stream_of(DeviceIndex device, StreamId id) { return Stream(Stream::UNSAFE, Device(kType, device), id); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static EventPtr& event_of(void* event) { return *static_cast<EventPtr*>(event); }
  c10::DeviceType type() const override { return kType; }
  Device getDevice() const override { return Device(kType, current_device); }
  Device exchangeDevice(Device device) const override { auto old = getDevice(); setDevice(device); return old; }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "there is no device ", device);
    if (device.index() >= 0) current_device = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  Stream getStream(Device device) const override { auto i = device.index() < 0 ? current_device : device.index(); return stream_of(i, current_streams[i]); }
  Stream getDefaultStream(Device device) const override { return stream_of(device.index(), 0); }
  Stream getNewStream(Device device, int) const override { return stream_of(device.index() < 0 ? current_device : device.index(), ++last_stream); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream stream) const override {
    auto old = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return old;
  }
  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new EventPtr;
    event_of(*event) = queue_of(stream).mark();
  }
  void block(void* event, const Stream& stream) const override {
    if (event) queue_of(stream).push([waited = event_of(event)] { waited->wait(); });
  }
  bool queryEvent(void* event) const override { return !event || event_of(event)->query(); }
  void synchronizeEvent(void* event) const override { if (event) event_of(event)->wait(); }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<EventPtr*>(event); }
  bool queryStream(const Stream& stream) const override { return queue_of(stream).mark()->query(); }
  void synchronizeStream(const Stream& stream) const override { queue_of(stream).mark()->wait(); }
  void synchronizeDevice(const DeviceIndex device) const override {
    std::vector<EventPtr> marks;
    {
      std::lock_guard g(queues_mutex);
      for (auto& [place, queue] : queues) if (place.first == device) marks.push_back(queue->mark());
    }
    for (auto& mark : marks) mark->wait();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Block {
  void* data;
  size_t size;
  DeviceIndex device;
  StreamId stream;
  std::set<StreamId> users;  // other streams, by `record_stream`
  std::vector<EventPtr> pending;
};

struct Memory final : c10::Allocator {  // of the devices; a block is held until it may be reused
  std::mutex mutex;
  std::map<std::tuple<DeviceIndex, StreamId, size_t>, std::vector<Block*>> cached;
  std::map<void*, Block*> blocks;
  std::vector<Block*> waiting;
  int64_t held[kDevices] = {}, peak[kDevices] = {}, limit = INT64_MAX;  // bytes

  c10::DataPtr allocate(size_t n) override {
    Device device(kType, current_device);
    if (!n) return {nullptr, nullptr, &release, device};
    size_t size = (n + 511) / 512 * 512;
    StreamId stream = current_streams[device.index()];
    std::lock_guard g(mutex);
    collect();
    auto& used = held[device.index()];
    // An event that is about to happen may wait for its thread, on a busy machine.
    for (int i = 0; i < 200 && !waiting.empty() && used + int64_t(size) > limit; ++i) sleep_us(100), collect();
    TORCH_CHECK_WITH(OutOfMemoryError, used + int64_t(size) <= limit, "out of memory on device ", device);
    auto& free_blocks = cached[{device.index(), stream, size}];
    Block* block;
    if (free_blocks.empty()) {
      block = new Block{std::aligned_alloc(512, size), size, device.index(), stream, {}, {}};
      blocks[block->data] = block;
    } else {
      block = free_blocks.back();
      free_blocks.pop_back();
    }
    used += size;
    peak[device.index()] = std::max(peak[device.index()], used);
    queue_of(device.index(), stream).push([block] { std::memset(block->data, 0xAB, block->size); });
    return {block->data, block, &release, device};
  }
  void collect() {
    std::erase_if(waiting, [this](Block* block) {
      for (auto& event : block->pending) if (!event->query()) return false;
      block->pending.clear();
      reuse(block);
      return true;
    });
  }
  void reuse(Block* block) {
    held[block->device] -= block->size;
    cached[{block->device, block->stream, block->size}].push_back(block);
  }
  void use(void* data, const Stream& stream) {
    std::lock_guard g(mutex);
    auto found = blocks.find(data);
    if (found != blocks.end() && stream.id() != found->second->stream) found->second->users.insert(stream.id());
  }
  static void release(void* context);
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};
Memory& memory = *new Memory;
void Memory::release(void* context) {
  auto* block = static_cast<Block*>(context);
  if (!block) return;
  std::lock_guard g(memory.mutex);
  for (auto user : block->users) block->pending.push_back(queue_of(block->device, user).mark());
  block->users.clear();
  if (block->pending.empty()) memory.reuse(block); else memory.waiting.push_back(block);
}

std::mutex& pinned_mutex = *new std::mutex;
auto& pinned = *new std::map<char*, size_t>;  // allocated or registered
std::set<char*>& registered = *new std::set<char*>;
bool is_pinned(const void* data) {
  std::lock_guard g(pinned_mutex);
  auto next = pinned.upper_bound((char*)data);
  return next != pinned.begin() && (char*)data < std::prev(next)->first + std::prev(next)->second;
}
struct HostMemoryImpl final : at::CachingHostAllocatorImpl<Stream, EventPtr> {
  void allocate_host_memory(size_t size, void** data) override {
    *data = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    std::lock_guard g(pinned_mutex);
    pinned[(char*)*data] = size;
  }
  void free_block(at::HostBlock<Stream>* block) override {
    { std::lock_guard g(pinned_mutex); pinned.erase((char*)block->ptr_); }
    std::free(block->ptr_);
  }
  void record_stream(std::optional<std::vector<EventPtr>>& events, Stream stream) override { events->push_back(queue_of(stream).mark()); }
  bool query_event(EventPtr& event) override { return event->query(); }
  bool pinned_use_background_threads() override { return false; }
};
void free_host(void* context);
using HostMemory = at::CachingHostAllocatorInterface<HostMemoryImpl, free_host>;
HostMemory& host_memory = *new HostMemory;
void free_host(void* context) { host_memory.free(context); }

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex device) const override { Guard().setDevice(Device(kType, device)); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return Guard().exchangeDevice(Device(kType, device)).index(); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &host_memory; }
  Device getDeviceFromPtr(void* data) const override {
    std::lock_guard g(memory.mutex);
    auto next = memory.blocks.upper_bound(data);
    TORCH_CHECK(next != memory.blocks.begin(), "no memory of a device");
    return Device(kType, std::prev(next)->second->device);
  }
};

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard g(device.value_or(Device(kType, current_device)));
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}
at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard g(device.value_or(Device(kType, current_device)));
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat), format);
}
at::Tensor on_host(const at::Tensor& tensor) {  // the same memory, as the host sees it
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Device device = to.is_cpu() ? from.device() : to.device();
  auto& queue = current_queue(device.index());
  bool plain = from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.is_contiguous() && to.is_contiguous();
  if (!plain || (to.device() != from.device() && !to.is_cpu() && !from.is_cpu())) {
    Guard().synchronizeDevice(device.index());
    on_host(to).copy_(on_host(from));
    return to;
  }
  auto *source = (char*)from.data_ptr(), *target = (char*)to.data_ptr();
  size_t n = from.nbytes();
  int64_t late = from.is_cpu() ? late_us.load() : 0;
  if (from.is_cpu() && !is_pinned(source)) {  // through a buffer of the driver's, as from pageable memory
    queue.push([bytes = std::string(source, n), target] { std::memcpy(target, bytes.data(), bytes.size()); });
  } else {
    queue.push([=] { sleep_us(late); std::memcpy(target, source, n); });
    auto& host = from.is_cpu() ? from : to;
    if (host.is_cpu()) host_memory.record_event(host.data_ptr(), host.storage().data_ptr().get_context(), Guard().getStream(device));
  }
  if (!non_blocking) queue.mark()->wait();
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) { return copy_from(from, to, false); }
at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) { return at::native::as_strided_tensorimpl(self, size, stride, offset); }
at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
void record_stream(at::Tensor& self, Stream stream) { memory.use(self.storage().mutable_data(), stream); }
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("record_stream", record_stream);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// A kernel: on the current stream, and as late as the stream is, it reads a float64 tensor and writes sum and extremes.
at::Tensor look(const at::Tensor& self) {
  TORCH_CHECK(self.is_contiguous() && self.dtype() == at::kDouble && self.numel() > 0);
  auto seen = at::empty({3}, at::kDouble);
  current_queue(self.device().index()).push([seen, data = (const double*)self.data_ptr(), n = self.numel()] {
    auto* out = (double*)seen.data_ptr();
    out[0] = 0, out[1] = data[0], out[2] = data[0];
    for (int64_t i = 0; i < n; ++i) out[0] += data[i], out[1] = std::min(out[1], data[i]), out[2] = std::max(out[2], data[i]);
  });
  return seen;
}
void lag(int64_t us) { current_queue(current_device).push([us] { sleep_us(us); }); }
void set_late(int64_t us) { late_us = us; }
void set_limit(int64_t bytes) { std::lock_guard g(memory.mutex); memory.limit = bytes < 0 ? INT64_MAX : bytes; }
std::vector<int64_t> usage(int64_t device) { std::lock_guard g(memory.mutex); memory.collect(); return {memory.held[device], memory.peak[device]}; }
void reset_peak() { std::lock_guard g(memory.mutex); memory.collect(); for (int i = 0; i < kDevices; ++i) memory.peak[i] = memory.held[i]; }
int64_t register_host(int64_t address, int64_t n) {
  std::lock_guard g(pinned_mutex);
  if (!registered.insert((char*)address).second) return 712;  // what CUDA says of memory that is registered already
  pinned[(char*)address] = n;
  return 0;
}
int64_t unregister_host(int64_t address) {
  std::lock_guard g(pinned_mutex);
  if (!registered.erase((char*)address)) return 713;
  pinned.erase((char*)address);
  return 0;
}
int64_t n_registered() { std::lock_guard g(pinned_mutex); return registered.size(); }

TORCH_LIBRARY(accelerator, m) {
  m.def("look(Tensor self) -> Tensor", look);
  m.def("lag(int us) -> ()", lag);
  m.def("set_late(int us) -> ()", set_late);
  m.def("set_limit(int bytes) -> ()", set_limit);
  m.def("usage(int device) -> int[]", usage);
  m.def("reset_peak() -> ()", reset_peak);
  m.def("register_host(int address, int n) -> int", register_host);
  m.def("unregister_host(int address) -> int", unregister_host);
  m.def("n_registered() -> int", n_registered);
}

const bool ready = [] {
  c10::SetAllocator(kType, &memory);
  at::setHostAllocator(kType, &host_memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

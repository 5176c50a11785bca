// A CUDA device that is pretended: PyTorch's CPU build gets DeviceType::CUDA on the memory of the host.
//
// PyTorch knows a device by four things, and this file has one part for each:
//
//   1. Memory      an allocator. New memory holds garbage, so whoever reads what nobody wrote sees it.
//   2. Device      a guard (which device and stream is current in a thread) and hooks (how many
//                  devices, whose random numbers, what is pinned). With a guard, autograd runs the
//                  backward of CUDA tensors in a thread of the device, as with a GPU.
//   3. Operators   one fallback for all: it runs the CPU's kernel on aliases of the tensors. It
//                  refuses tensors of two devices, as CUDA's kernels do, and counts by name what
//                  makes the host wait for a GPU.
//   4. Python      a few functions by which cuda.py reads counters and sets the device.
//
// Kernels are done when their call returns, so a missing wait between two streams is not found.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>

using namespace at;
using c10::DeviceIndex;
using c10::StreamId;

constexpr int MOST_DEVICES = 64;
static std::mutex lock;  // of every counter below

static DeviceIndex device_count() {
  static const char* asked = std::getenv("PRETENDED_GPUS");
  return asked ? std::min(std::atoi(asked), MOST_DEVICES) : 0;
}

static thread_local DeviceIndex current_device = 0;
static thread_local std::array<StreamId, MOST_DEVICES> current_stream{};  // 0: the default stream
static std::atomic<StreamId> newest_stream{0};

// --- 1. memory -----------------------------------------------------------------------------------

constexpr size_t BLOCK = 512;  // CUDA's caching allocator rounds every request up to a block
constexpr unsigned char GARBAGE = 0xfb;  // as a float or a double: about -1e36 and -1e288

static size_t in_blocks(size_t bytes) { return (bytes + BLOCK - 1) / BLOCK * BLOCK; }

struct Counter {
  int64_t now = 0, peak = 0;
  void add(int64_t bytes) {
    now += bytes;
    peak = std::max(peak, now);
  }
};
struct Bytes {
  Counter allocated, requested;  // in whole blocks; as asked for
};
static std::array<Bytes, MOST_DEVICES> memory_of_device;

static void count_bytes(DeviceIndex device, int64_t bytes, int sign) {
  std::lock_guard<std::mutex> held(lock);
  memory_of_device[device].allocated.add(sign * static_cast<int64_t>(in_blocks(bytes)));
  memory_of_device[device].requested.add(sign * bytes);
}

// What a tensor's memory keeps alive: memory of its own, or a result of a CPU kernel.
struct Block {
  DeviceIndex device;
  size_t bytes;
  void* own;
  Tensor result;

  Block(DeviceIndex device, size_t bytes, void* own, Tensor result = {})
      : device(device), bytes(bytes), own(own), result(std::move(result)) {
    count_bytes(device, bytes, +1);
  }
  ~Block() {
    count_bytes(device, bytes, -1);
    std::free(own);
  }
};
static void release(void* block) { delete static_cast<Block*>(block); }

struct DeviceMemory final : Allocator {
  DataPtr allocate(size_t bytes) override {
    Device here(kCUDA, current_device);
    if (!bytes) return {nullptr, nullptr, &release, here};
    void* memory = std::aligned_alloc(BLOCK, in_blocks(bytes));
    std::memset(memory, GARBAGE, bytes);
    return {memory, new Block(here.index(), bytes, memory), &release, here};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
static DeviceMemory device_memory;

static std::unordered_set<const void*> pinned;  // addresses where pinned memory begins

static void unpin(void* memory) {
  {
    std::lock_guard<std::mutex> held(lock);
    pinned.erase(memory);
  }
  std::free(memory);
}
struct PinnedMemory final : Allocator {
  DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, nullptr, &unpin, Device(kCPU)};
    void* memory = std::aligned_alloc(BLOCK, in_blocks(bytes));
    std::memset(memory, GARBAGE, bytes);
    std::lock_guard<std::mutex> held(lock);
    pinned.insert(memory);
    return {memory, memory, &unpin, Device(kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
static PinnedMemory pinned_memory;

// --- what the host waits for ---------------------------------------------------------------------

static std::map<std::string, int64_t> waits;  // how often the host has waited, by the cause

static void note_wait(const std::string& cause) {
  std::lock_guard<std::mutex> held(lock);
  ++waits[cause];
}

// --- 2. device -----------------------------------------------------------------------------------

static Device with_index(Device device) {
  return device.has_index() ? device : Device(kCUDA, current_device);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kCUDA; }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }
  Device getDevice() const override { return Device(kCUDA, current_device); }
  void setDevice(Device device) const override { current_device = with_index(device).index(); }
  void uncheckedSetDevice(Device device) const noexcept override { setDevice(device); }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    setDevice(device);
    return before;
  }

  Stream stream(Device device, StreamId id) const {
    return Stream(Stream::UNSAFE, with_index(device), id);
  }
  Stream getStream(Device device) const noexcept override {
    return stream(device, current_stream[with_index(device).index()]);
  }
  Stream getDefaultStream(Device device) const override { return stream(device, 0); }
  Stream getNewStream(Device device, int) const override { return stream(device, ++newest_stream); }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return stream(device, ++newest_stream);
  }
  Stream exchangeStream(Stream next) const noexcept override {
    Stream before = getStream(next.device());
    current_stream[next.device_index()] = next.id();
    return before;
  }

  // Every kernel is done when its call returns, and so is what an event stands for.
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void recordDataPtrOnStream(const DataPtr&, const Stream&) const override {}
  void synchronizeStream(const Stream&) const override { note_wait("synchronize"); }
  void synchronizeEvent(void*) const override { note_wait("synchronize"); }
  void synchronizeDevice(const DeviceIndex) const override { note_wait("synchronize"); }
};
static Guard guard;

// Random numbers of each device: a generator apart from the CPU's, so code that restores only one
// of the two is found. The numbers are those that the CPU would draw from the same seed.
static Generator& generator_of(DeviceIndex device) {
  static std::vector<Generator> made = [] {
    std::vector<Generator> all;
    for (int i = 0; i < MOST_DEVICES; ++i) all.push_back(at::detail::createCPUGenerator());
    return all;
  }();
  return made.at(device < 0 ? current_device : device);
}

struct CUDAHooks : CUDAHooksInterface {  // PyTorch finds the hooks by this name
  CUDAHooks() = default;
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return device_count(); }
  DeviceIndex deviceCount() const override { return device_count(); }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex device) const override { ::current_device = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(::current_device, device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? ::current_device : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* memory) const override {
    std::lock_guard<std::mutex> held(lock);
    return pinned.count(memory);
  }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
  const Generator& getDefaultGenerator(DeviceIndex device) const override {
    return generator_of(device);
  }
  Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void deviceSynchronize(DeviceIndex) const override { note_wait("synchronize"); }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

// DDP asks the device for its clock, to log how long forward and backward take.
struct PretendedTimer final : c10d::Timer {
  explicit PretendedTimer(Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto from = getTimestamp(start), to = getTimestamp(end);
    return from && to ? std::optional<int64_t>(*to - *from) : std::nullopt;
  }
};

[[maybe_unused]] static bool registered = [] {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(kCUDA)].store(&guard);
  c10::SetAllocator(kCUDA, &device_memory);
  c10d::TimerRegistry()->Register(
      kCUDA, [](Device device) { return std::make_unique<PretendedTimer>(device); });
  return true;
}();

// --- 3. operators --------------------------------------------------------------------------------

// The tensor's memory, as a CPU tensor that the CPU's kernels take.
static Tensor on_host(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  DataPtr memory(tensor.storage().mutable_data(), Device(kCPU));
  auto alias = at::detail::make_tensor<TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(memory),
                   nullptr, false),
      DispatchKeySet(DispatchKey::CPU), tensor.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                     tensor.storage_offset());
  return alias;
}

// A CPU tensor, the result of a CPU kernel, as a tensor on the device.
static Tensor on_device(const Tensor& result, Device device) {
  if (!result.defined() || result.is_cuda() || result.layout() != kStrided) return result;
  size_t bytes = result.storage().nbytes();
  auto* block = new Block(device.index(), bytes, nullptr, result);
  DataPtr memory(result.storage().mutable_data(), block, &release, device);
  auto made = at::detail::make_tensor<TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory), &device_memory, true),
      DispatchKeySet(DispatchKey::CUDA), result.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(),
                                                    result.storage_offset());
  return made;
}

static void take_over(const Tensor& tensor, const Tensor& other) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(other.storage());
  impl->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
}

// Operators whose indices may be on the CPU while the data are on a GPU.
static bool takes_indices_of_the_host(const std::string& name) {
  static const std::set<std::string> names = {"aten::index",         "aten::index_put",
                                              "aten::index_put_",    "aten::_index_put_impl_",
                                              "aten::_unsafe_index", "aten::_unsafe_index_put"};
  return names.count(name);
}

// Operators that must know values before they return: their result is a number of Python's, or its
// size depends on the values.
static bool reads_values(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::_local_scalar_dense", "aten::nonzero",           "aten::masked_select",
      "aten::equal",               "aten::bincount",          "aten::_unique",
      "aten::_unique2",            "aten::unique_dim",        "aten::unique_consecutive",
      "aten::unique_dim_consecutive", "aten::repeat_interleave"};
  return names.count(name);
}

// One call: its arguments as the CPU's kernel gets them, and what must be known afterwards.
struct Call {
  std::string name;
  Device device{kCUDA, current_device};
  bool on_cuda = false;
  std::string stranger;  // a tensor of another device, in words
  bool by_mask = false;  // an index of booleans: how many are true?
  std::vector<std::pair<Tensor, Tensor>> resized;  // an empty out=, and what the CPU's kernel fills

  void look_at(const Tensor& tensor) {
    if (!tensor.defined()) return;
    bool other_gpu = tensor.is_cuda() && on_cuda && tensor.device() != device && tensor.dim() > 0;
    if (other_gpu || (tensor.is_cpu() && tensor.dim() > 0))
      stranger = c10::str(tensor.device(), " (", name, " got a tensor of shape ", tensor.sizes(), " there)");
    if (tensor.is_cuda() && !on_cuda) {
      on_cuda = true;
      device = tensor.device();
    }
  }
  Tensor swap(const Tensor& tensor) {
    look_at(tensor);
    return on_host(tensor);
  }
  IValue swap(const IValue& value) {
    if (value.isTensor()) return swap(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> made;
      for (const Tensor& tensor : value.toTensorList()) made.push_back(swap(tensor));
      return made;
    }
    if (value.isOptionalTensorList()) {  // indices
      c10::List<std::optional<Tensor>> made;
      for (std::optional<Tensor> tensor : value.toOptionalTensorList()) {
        if (!tensor) {
          made.push_back(std::nullopt);
          continue;
        }
        if (tensor->defined()) by_mask |= tensor->scalar_type() == kBool || tensor->scalar_type() == kByte;
        made.push_back(swap(*tensor));
      }
      return made;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) {
      on_cuda = true;
      device = with_index(value.toDevice());
      return Device(kCPU);
    }
    return value;
  }
  Tensor swap_for_one_to_be_resized(const Tensor& out) {
    look_at(out);
    resized.emplace_back(out, at::empty(out.sizes(), out.options().device(kCPU)));
    return resized.back().second;
  }
  void check_devices() const {
    TORCH_CHECK(!on_cuda || stranger.empty() || takes_indices_of_the_host(name),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                device, " and ", stranger);
  }
  void note_waits(const std::vector<IValue>& given) const {
    // repeat_interleave with output_size knows its size
    const bool told = name == "aten::repeat_interleave" && !given.back().isNone();
    if (reads_values(name) && !told) note_wait(name);
    // x[mask] asks nonzero() before it comes here; x[mask] = 0 fills without a count
    if (by_mask && name == "aten::_index_put_impl_" && given[2].toTensor().numel() != 1)
      note_wait("aten::index_put by a mask");
  }
};

// A result that is a view of an argument stays one: it shares the argument's storage.
static Tensor as_result(const Tensor& result, const std::vector<IValue>& given, Device device) {
  if (result.defined() && result.numel())
    for (const IValue& value : given) {
      if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_cuda()) continue;
      Tensor argument = value.toTensor();
      if (argument.storage().data() == result.storage().data())
        return at::native::as_strided_tensorimpl(argument, result.sizes(), result.strides(),
                                                 result.storage_offset());
    }
  return on_device(result, device);
}

static bool written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// Operators that draw take the numbers of the device's generator.
struct DrawsFromTheDevice {
  std::unique_lock<std::mutex> one_at_a_time;
  Generator cpu = at::detail::getDefaultCPUGenerator(), own;
  Tensor state_of_cpu;

  explicit DrawsFromTheDevice(DeviceIndex device) : own(generator_of(device)) {
    static std::mutex drawing;
    one_at_a_time = std::unique_lock<std::mutex>(drawing);
    state_of_cpu = state(cpu);
    set_state(cpu, state(own));
  }
  ~DrawsFromTheDevice() {
    set_state(own, state(cpu));
    set_state(cpu, state_of_cpu);
  }
  static Tensor state(Generator& generator) {
    std::lock_guard<std::mutex> held(generator.mutex());
    return generator.get_state();
  }
  static void set_state(Generator& generator, const Tensor& state) {
    std::lock_guard<std::mutex> held(generator.mutex());
    generator.set_state(state);
  }
};

static void run_on_host(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto& returns = op.schema().returns();
  const size_t first = stack->size() - arguments.size();
  const std::vector<IValue> given(stack->begin() + first, stack->end());

  Call call{op.schema().name()};
  for (size_t i = 0; i < arguments.size(); ++i) {
    IValue& value = (*stack)[first + i];
    bool empty_out = written(arguments[i]) && value.isTensor() && value.toTensor().defined() &&
                     value.toTensor().is_cuda() && value.toTensor().numel() == 0;
    value = empty_out ? IValue(call.swap_for_one_to_be_resized(value.toTensor())) : call.swap(value);
  }
  call.check_devices();
  call.note_waits(given);
  {
    std::optional<DrawsFromTheDevice> drawing;
    if (call.on_cuda && op.hasTag(at::Tag::nondeterministic_seeded)) drawing.emplace(call.device.index());
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  }
  for (auto& [out, filled] : call.resized)
    if (filled.sizes() != out.sizes()) take_over(out, on_device(filled, call.device));

  const size_t first_result = stack->size() - returns.size();
  for (size_t i = 0; i < returns.size(); ++i) {
    IValue& result = (*stack)[first_result + i];
    if (written(returns[i])) {  // in place, or out=: the argument itself
      for (size_t a = 0; a < arguments.size(); ++a)
        if (written(arguments[a]) && arguments[a].alias_info()->beforeSets() == returns[i].alias_info()->beforeSets()) {
          result = given[a];
          break;
        }
    } else if (result.isTensor()) {
      result = as_result(result.toTensor(), given, call.device);
    } else if (result.isTensorList()) {
      c10::List<Tensor> made;
      for (const Tensor& tensor : result.toTensorList()) made.push_back(as_result(tensor, given, call.device));
      result = made;
    }
  }
}

// Operators that make, move or look at memory have kernels of their own.

struct OnDevice {  // the given device is current in a scope
  DeviceIndex before = current_device;
  explicit OnDevice(std::optional<Device> device) {
    if (device) guard.setDevice(*device);
  }
  ~OnDevice() { current_device = before; }
};

namespace kernels {

Tensor empty(SymIntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>,
                    std::optional<Device> device, std::optional<bool>,
                    std::optional<MemoryFormat> format) {
  OnDevice there(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_memory,
                                   DispatchKeySet(DispatchKey::CUDA),
                                   dtype.value_or(get_default_dtype_as_scalartype()), format);
}

Tensor empty_strided(SymIntArrayRef size, SymIntArrayRef stride,
                            std::optional<ScalarType> dtype, std::optional<Layout>,
                            std::optional<Device> device, std::optional<bool>) {
  OnDevice there(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_memory,
      DispatchKeySet(DispatchKey::CUDA), dtype.value_or(get_default_dtype_as_scalartype()));
}

// Between host and device: only a non-blocking copy with pinned memory lets the host go on.
Tensor& copy(Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.is_cuda() != from.is_cuda() && to.numel()) {
    bool is_pinned = (to.is_cuda() ? from : to).is_pinned();
    if (!non_blocking || !is_pinned)
      note_wait(std::string(non_blocking ? "non-blocking copy " : "copy ") +
                (to.is_cuda() ? "from " : "to ") + (is_pinned ? "pinned" : "pageable") + " memory");
  }
  on_host(to).copy_(on_host(from));
  return to;
}

Tensor view(const Tensor& self, SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
Tensor as_strided(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride,
                         std::optional<SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}
Tensor reshape_alias(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

void resize_storage(const Tensor& tensor, int64_t bytes) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  OnDevice there(tensor.device());
  DataPtr memory = device_memory.allocate(bytes);
  if (size_t kept = std::min<size_t>(bytes, storage->nbytes()))
    std::memcpy(memory.get(), storage->data(), kept);
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(bytes);
}
const Tensor& resize(const Tensor& self, SymIntArrayRef size, std::optional<MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  size_t bytes = (self.storage_offset() + self.numel()) * self.element_size();
  if (bytes > self.storage().nbytes()) resize_storage(self, bytes);
  return self;
}

Tensor& set_storage_and_sizes(Tensor& self, Storage storage, SymInt offset,
                                     SymIntArrayRef size, SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  if (strides.size() == sizes.size()) {
    impl->set_sizes_and_strides(sizes, strides, offset.expect_int());
  } else {
    impl->set_storage_offset(offset.expect_int());
    impl->set_sizes_contiguous(sizes);
  }
  return self;
}
Tensor& set_storage(Tensor& self, Storage storage) {
  int64_t elements = storage.nbytes() / self.dtype().itemsize();
  return set_storage_and_sizes(self, std::move(storage), 0, {SymInt(elements)}, {});
}
Tensor& set_tensor(Tensor& self, const Tensor& other) {
  take_over(self, other);
  return self;
}
bool is_pinned(const Tensor&, std::optional<Device>) { return false; }
void record_stream(Tensor&, Stream) {}

}  // namespace kernels

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", kernels::empty);
  m.impl("empty_strided", kernels::empty_strided);
  m.impl("copy_", kernels::copy);
  m.impl("view", kernels::view);
  m.impl("as_strided", kernels::as_strided);
  m.impl("_reshape_alias", kernels::reshape_alias);
  m.impl("resize_", kernels::resize);
  m.impl("set_.source_Storage", kernels::set_storage);
  m.impl("set_.source_Storage_storage_offset", kernels::set_storage_and_sizes);
  m.impl("set_.source_Tensor", kernels::set_tensor);
  m.impl("is_pinned", kernels::is_pinned);
  m.impl("record_stream", kernels::record_stream);
}

// --- 4. Python -----------------------------------------------------------------------------------

TORCH_LIBRARY(pretended, m) {
  m.def("on_host(Tensor tensor) -> Tensor");
  m.def("resize_storage(Tensor tensor, int bytes) -> ()");
  m.def("rng_state(int device) -> Tensor", [](int64_t device) {
    return DrawsFromTheDevice::state(generator_of(device));
  });
  m.def("set_rng_state(int device, Tensor state) -> ()", [](int64_t device, const Tensor& state) {
    DrawsFromTheDevice::set_state(generator_of(device), state);
  });
  m.def("seed(int device, int seed) -> ()", [](int64_t device, int64_t seed) {
    generator_of(device).set_current_seed(seed);
  });
  m.def("set_stream(int device, int id) -> ()", [](int64_t device, int64_t id) {
    current_stream[device] = id;
  });
}
TORCH_LIBRARY_IMPL(pretended, CUDA, m) {
  m.impl("on_host", TORCH_FN(on_host));
  m.impl("resize_storage", TORCH_FN(kernels::resize_storage));
}

extern "C" {
int64_t pretended_current_device() { return current_device; }
void pretended_set_device(int64_t device) { current_device = device; }
int64_t pretended_current_stream(int64_t device) { return current_stream[device]; }

// allocated now and at most, requested now and at most
void pretended_memory(int64_t device, int64_t* out) {
  std::lock_guard<std::mutex> held(lock);
  const Bytes& bytes = memory_of_device[device];
  for (int64_t value : {bytes.allocated.now, bytes.allocated.peak, bytes.requested.now, bytes.requested.peak})
    *out++ = value;
}
void pretended_reset_peak(int64_t device) {
  std::lock_guard<std::mutex> held(lock);
  Bytes& bytes = memory_of_device[device];
  bytes.allocated.peak = bytes.allocated.now;
  bytes.requested.peak = bytes.requested.now;
}
void pretended_note_wait(const char* cause) { note_wait(cause); }

// Writes the waits since the last call as lines of "cause<tab>times", and forgets them.
void pretended_take_waits(char* out, int64_t most) {
  std::lock_guard<std::mutex> held(lock);
  std::string lines;
  for (const auto& [cause, times] : waits) lines += cause + "\t" + std::to_string(times) + "\n";
  waits.clear();
  std::strncpy(out, lines.c_str(), most - 1);
  out[most - 1] = 0;
}
}

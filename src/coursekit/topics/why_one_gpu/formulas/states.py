"""Model states: the bytes that live from step to step, whatever the batch. A recipe says how many
bytes each element takes."""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, maximum, where

_ZERO = "Rajbhandari et al. 2020 (ZeRO), section 3.1"
_MEASURED = "tests/why_one_gpu/test_states.py::test_states_of_a_training_run"
_MOMENTS = "tests/why_one_gpu/test_states.py::test_moments_one_by_one"
_SHARE = "tests/why_one_gpu/test_states.py::test_share_of_one_gpu"
_DEFINITION = "definition"


class BytesOfStates(BOOK.section(source=_ZERO, measured_by=_MEASURED)):
    def bytes_per_parameter(q):
        r"""\beta | bytes | bytes of model states for each parameter: often quoted as 16, but the
        number depends on the recipe"""
        return (
            q.parameter_element_bytes
            + q.gradient_element_bytes
            + q.master_element_bytes
            + q.optimizer_moments * q.moment_element_bytes
        )

    @BOOK.own(source="Kingma and Ba 2015", measured_by=_MOMENTS)
    def first_moment_element_bytes(q):
        r"""\beta_m | bytes | bytes of an element of the optimizer's first tensor: the running mean
        of the gradient, Adam's m, or momentum; 0 for plain SGD"""
        return where(q.optimizer_moments > 0, q.moment_element_bytes, 0)

    @BOOK.own(source="Kingma and Ba 2015", measured_by=_MOMENTS)
    def other_moment_element_bytes(q):
        r"""\beta_v | bytes | bytes of an element of the optimizer's further tensors: Adam's v, the
        running mean of the squared gradient; 0 without one"""
        return where(q.optimizer_moments > 1, (q.optimizer_moments - 1) * q.moment_element_bytes, 0)

    def parameter_bytes(q):
        r"""M_\text{param} | bytes | bytes of the parameters that forward and backward compute
        with"""
        return q.parameter_element_bytes * q.parameters

    def gradient_bytes(q):
        r"""M_\text{grad} | bytes | bytes of the gradients, all of which exist when backward has
        finished"""
        return q.gradient_element_bytes * q.parameters

    def optimizer_bytes(q):
        r"""M_\text{opt} | bytes | bytes of the optimizer states: the master copy, if the recipe has
        one, and the moments"""
        return (
            q.master_element_bytes + q.optimizer_moments * q.moment_element_bytes
        ) * q.parameters

    @BOOK.own(source="torch.optim.AdamW: a float32 step for each parameter tensor")
    def step_counter_bytes(q):
        r"""M_\text{step} | bytes | bytes of PyTorch's step counters: a few hundred, which exact
        bookkeeping has to name"""
        return q.step_counter_element_bytes * q.parameter_tensors

    def states_bytes(q):
        r"""M_\text{states} | bytes | bytes of all model states; activations come on top"""
        return q.parameter_bytes + q.gradient_bytes + q.optimizer_bytes


# --- dealt to GPUs: the lower bound that chapter 1 asks about -------------------------------------
class DealtToGPUs(BOOK.section(source=_DEFINITION, measured_by=_SHARE)):
    @BOOK.own(measured_by="tests/engines/test_formulas.py::test_degrees", least=1)
    def gpus_per_copy(q):
        r"""n_\text{copy} | GPUs | GPUs that share one copy of the model"""
        return q.tensor_parallel * q.pipeline_parallel

    def parameters_per_gpu(q):
        r"""\Psi_\text{GPU} | parameters | parameters of the fullest GPU if one copy is divided
        evenly; no real split does better"""
        return ceil_div(q.parameters, q.gpus_per_copy)

    def parameter_bytes_per_gpu(q):
        r"""M_\text{param}^\text{GPU} | bytes | bytes of parameters on the fullest GPU"""
        return q.parameter_element_bytes * q.parameters_per_gpu

    def gradient_bytes_per_gpu(q):
        r"""M_\text{grad}^\text{GPU} | bytes | bytes of gradients on the fullest GPU"""
        return q.gradient_element_bytes * q.parameters_per_gpu

    def master_bytes_per_gpu(q):
        r"""M_\text{master}^\text{GPU} | bytes | bytes of the optimizer's master copy on the fullest
        GPU; 0 where the recipe has none"""
        return q.master_element_bytes * q.parameters_per_gpu

    def moment_bytes_per_gpu(q):
        r"""M_\text{mom}^\text{GPU} | bytes | bytes of the optimizer's moments on the fullest GPU"""
        return q.optimizer_moments * q.moment_element_bytes * q.parameters_per_gpu

    def states_bytes_per_gpu(q):
        r"""M_\text{GPU} | bytes | bytes of model states on the fullest GPU when one copy is divided
        evenly"""
        return (
            q.parameter_bytes_per_gpu
            + q.gradient_bytes_per_gpu
            + q.master_bytes_per_gpu
            + q.moment_bytes_per_gpu
        )

    @BOOK.own(measured_by="tests/engines/test_formulas.py::test_fit")
    def spare_bytes(q):
        r"""M_\text{free} | bytes | bytes the model states leave for activations, temporaries and
        buffers"""
        return maximum(q.gpu_memory_bytes - q.states_bytes_per_gpu, 0)

    @BOOK.own(measured_by="tests/engines/test_formulas.py::test_fit")
    def gpus_to_hold_states(q):
        r"""n_\text{min} | GPUs | fewest GPUs whose memory together holds the model states"""
        return ceil_div(q.states_bytes, q.gpu_memory_bytes)

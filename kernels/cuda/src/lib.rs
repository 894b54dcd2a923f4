//! The CUDA backend: a model's weights, its rows and its KV pool in the memory of an NVIDIA GPU.
//!
//! [`CudaModel`] is a model there, a [`Backend`](ragstone_kernels::backend::Backend) as the processor's is; [`Gpu`] what the driver says of a
//! GPU, [`Trial`] which of the kernels for one generation are used on it.
//!
//! ```
//! match ragstone_cuda::gpus() {
//!     Ok(gpus) => gpus.iter().for_each(|gpu| println!("{gpu:?}")),
//!     Err(why) => println!("{why}"), // no CUDA driver is installed (libcuda.so is not found)
//! }
//! ```
//!
//! Nothing of CUDA is linked: the driver's library is looked for at run time, and the kernels are PTX that the driver compiles for its GPU.
//! The sources of the kernels are in `kernels/cuda/`, with what each computes and how it is launched; `ops/cuda/ptx` makes the PTX of them.
//!
//! ```text
//! gpus      which GPUs there are
//! driver    the driver's functions, owned and checked
//! session   a GPU in use: streams, memory, launches; a new one begins when the GPU is lost
//! machine_code  what the driver need not compile, where it lies beside the program
//! staging   pinned host memory that copies go through
//! launch    each kernel with its launch geometry
//! weights   a checkpoint's matrices in device memory
//! quantized those of 8 bits
//! layer     what the steps of a layer are made of
//! experts   the same of a mixture of experts
//! parallel  one model on several GPUs; the steps of a layer, over all of them
//! rows      hidden states on their way
//! step      all layers at once, as a graph that is replayed
//! pool      blocks of keys and values in device memory
//! backend   the engine's view of it
//! trial     whether kernels for one generation of GPUs give the bits of the others
//! proof     whether the others compute on a GPU what the host does, once
//! check     every kernel beside the host, for `ragstone bench parity`
//! measure   what kernels and copies take, for `ragstone bench kernels` and `bench tiers`
//! ```
//!
//! Work is queued on one compute stream, in order. Stored KV goes to the device on a stream of its own, while the layer before is still
//! computed; an event keeps the order between the two. Only what a host needs (logits, deviations, exports) is waited for.

mod attention;
mod backend;
mod check;
mod driver;
mod experts;
mod gpus;
mod launch;
mod layer;
mod machine_code;
pub mod measure;
mod model;
mod parallel;
mod pool;
mod proof;
mod quantized;
mod rope;
mod rows;
mod session;
mod staging;
mod step;
mod trial;
mod weights;

pub use check::{BitCheck, CheckOptions, Checked, Family, FamilyCheck, KernelCheck, check, check_family};
pub use gpus::{Gpu, Unavailable, gpus, usable};
pub use machine_code::LoadedCode;
pub use model::CudaModel;
pub use parallel::GpuList;
pub use proof::{Proof, prove};
pub use session::Queued;
#[doc(hidden)]
pub use session::keep_freed_memory;
pub use trial::{Trial, Tried, Use, try_out};

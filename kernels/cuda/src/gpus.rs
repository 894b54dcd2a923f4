//! Which GPUs there are, and whether they run the kernels.

use std::ffi::{CStr, c_int};
use std::fmt;

use cudarc::driver::sys;

use super::driver::{attribute, check, device, total_memory};
use ragstone_kernels::error::{Error, ErrorKind, Result};

/// The first driver that can read the kernels' PTX, as `cuDriverGetVersion` counts: CUDA 13.0.
const LEAST_DRIVER: c_int = 13_000;

/// What the kernels' PTX is made for.
const LEAST_CAPABILITY: (u32, u32) = (8, 0);

/// Why there is no GPU to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// No driver is installed.
    NoDriver,
    /// The driver is older than the kernels: its CUDA version.
    OldDriver(String),
    /// The driver says that it has no GPU, or why it does not start.
    NoGpu(String),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => write!(f, "no CUDA driver is installed (libcuda.so is not found)"),
            Self::OldDriver(version) => {
                write!(f, "the CUDA driver is too old: it is of CUDA {version}, 13.0 (driver 580) is needed")
            }
            Self::NoGpu(reason) => write!(f, "the CUDA driver offers no GPU: {reason}"),
        }
    }
}

/// A GPU that the driver knows.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Gpu {
    pub ordinal: usize,
    pub name: String,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// The CUDA version of the driver.
    pub driver: String,
    pub memory_bytes: u64,
    pub multiprocessors: u32,
    /// Of the multiprocessors, at most; 0 where the driver does not tell.
    pub clock_khz: u64,
    /// What its memory carries in a second, by its clock and its width; 0 where the driver does not tell.
    pub memory_bytes_per_s: u64,
}

impl fmt::Display for Gpu {
    /// `NVIDIA H100 80GB HBM3, compute capability 9.0, 132 multiprocessors, 79.6 GiB, driver of CUDA 13.0`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, compute_capability: (major, minor), multiprocessors, driver, .. } = self;
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        write!(
            f,
            "{name}, compute capability {major}.{minor}, {multiprocessors} multiprocessors, {gib:.1} GiB, driver of CUDA {driver}"
        )
    }
}

/// The machine's GPUs.
///
/// # Errors
/// Why there are none.
pub fn gpus() -> Result<Vec<Gpu>, Unavailable> {
    // SAFETY: it opens a library by name; a driver's has no requirements on who opens it.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoDriver);
    }
    let text = |error: Error| Unavailable::NoGpu(error.to_string());
    let mut version = 0;
    // SAFETY: the pointer is valid for the call.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) }).map_err(text)?;
    let driver = format!("{}.{}", version / 1000, version % 1000 / 10);
    if version < LEAST_DRIVER {
        return Err(Unavailable::OldDriver(driver));
    }
    // SAFETY: no requirements.
    check("cuInit", unsafe { sys::cuInit(0) }).map_err(text)?;
    let mut count = 0;
    // SAFETY: the pointer is valid for the call.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) }).map_err(text)?;
    if count == 0 {
        return Err(Unavailable::NoGpu("it counts none".to_owned()));
    }
    (0..count as usize).map(|ordinal| describe(ordinal, &driver).map_err(text)).collect()
}

fn describe(ordinal: usize, driver: &str) -> Result<Gpu> {
    let device = device(ordinal)?;
    let mut name = [0; 256];
    // SAFETY: the pointer is valid for the call, and the length is the buffer's.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device) })?;
    // SAFETY: the driver ends the name with a zero inside of the buffer.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    use sys::CUdevice_attribute as Attribute;
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let multiprocessors = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    // Only benchmarks ask for these, and newer drivers may leave them out.
    let or_unknown = |of| attribute(device, of).map_or(0, |value| value.max(0) as u64);
    let memory_khz = or_unknown(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
    let bus_bits = or_unknown(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
    Ok(Gpu {
        ordinal,
        name,
        compute_capability: (major as u32, minor as u32),
        driver: driver.to_owned(),
        memory_bytes: total_memory(device)?,
        multiprocessors: multiprocessors.max(1) as u32,
        clock_khz: or_unknown(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        // Two bits a line and clock.
        memory_bytes_per_s: 2 * 1000 * memory_khz * bus_bits / 8,
    })
}

/// The GPU of that number, counted from 0.
///
/// # Errors
/// `Unavailable` where there is no GPU or it is too old, `InvalidInput` where there are others.
pub fn usable(ordinal: usize) -> Result<Gpu> {
    let mut known = gpus().map_err(|why| Error::new(ErrorKind::Unavailable, format!("{why}; take `--device cpu`")))?;
    if ordinal >= known.len() {
        let message = format!("there is no GPU {ordinal}: the driver knows {}, counted from 0", known.len());
        return Err(Error::invalid_input(message));
    }
    let gpu = known.swap_remove(ordinal);
    gpu.check()?;
    Ok(gpu)
}

impl Gpu {
    /// Whether it runs the kernels.
    ///
    /// # Errors
    /// `Unavailable` where it is too old.
    fn check(&self) -> Result<()> {
        let (major, minor) = self.compute_capability;
        if self.compute_capability >= LEAST_CAPABILITY {
            return Ok(());
        }
        let name = &self.name;
        let message = format!("{name} has compute capability {major}.{minor}, 8.0 is needed; take `--device cpu`");
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_too_old_is_named() {
        let gpu = |compute_capability| Gpu {
            ordinal: 0,
            name: "Tesla T4".to_owned(),
            compute_capability,
            driver: "13.0".to_owned(),
            memory_bytes: 15 << 30,
            multiprocessors: 40,
            clock_khz: 0,
            memory_bytes_per_s: 0,
        };
        assert!(gpu((8, 0)).check().is_ok() && gpu((12, 1)).check().is_ok());
        let error = gpu((7, 5)).check().unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.to_string().contains("Tesla T4 has compute capability 7.5")
        );
    }
}

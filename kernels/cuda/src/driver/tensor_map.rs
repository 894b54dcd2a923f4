//! What kernels for compute capability 9.0 are told of a matrix that they have tiles of copied.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::check;
use ragstone_kernels::error::Result;

/// A matrix of 16-bit values in device memory, and the tiles that are copied of it: some lines of 64 values, in shared memory in the order
/// that tensor cores read without conflicts ("128-byte swizzle"); zeros for what does not exist.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorMap(sys::CUtensorMap);

/// What a map is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiled {
    /// A multiple of 16.
    pub(crate) start: u64,
    pub(crate) lines: u32,
    /// Of a line: a multiple of 8.
    pub(crate) values: u32,
    /// Of a tile, at most 256.
    pub(crate) tile_lines: u32,
    pub(crate) is_f16: bool,
}

impl TensorMap {
    /// Values of a tile's line.
    const TILE_VALUES: u32 = 64;

    /// # Errors
    /// The driver's, for what it cannot copy.
    pub(crate) fn new(of: Tiled) -> Result<Self> {
        use sys::{
            CUtensorMapDataType as Type, CUtensorMapFloatOOBfill as Fill, CUtensorMapInterleave as Interleave,
            CUtensorMapL2promotion as Promotion, CUtensorMapSwizzle as Swizzle,
        };
        let mut map = Self(sys::CUtensorMap { opaque: [0; 16] });
        let values = match of.is_f16 {
            true => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            false => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        };
        let sizes = [u64::from(of.values), u64::from(of.lines)];
        let (strides, tile, every) = ([2 * u64::from(of.values)], [Self::TILE_VALUES, of.tile_lines], [1, 1]);
        // SAFETY: the pointers are valid for the call; the matrix is not read.
        let result = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map.0,
                values,
                2,
                of.start as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                every.as_ptr(),
                Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check("cuTensorMapEncodeTiled", result).map(|()| map)
    }
}

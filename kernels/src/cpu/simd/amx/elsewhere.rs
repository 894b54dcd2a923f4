//! What stands for tiles where no thread may use them: none of it is ever run.

/// Never.
pub(crate) fn is_available() -> bool {
    false
}

pub(crate) struct Tiles(());

impl Tiles {
    pub(crate) unsafe fn configure() -> Self {
        unreachable!("tiles are not available here")
    }
}

pub(crate) struct Product {
    pub(crate) x: *const u32,
    pub(crate) x_stride: usize,
    pub(crate) panel: *const u32,
    pub(crate) depth: usize,
    pub(crate) sums: *mut f32,
    pub(crate) sums_stride: usize,
    pub(crate) rows: usize,
    pub(crate) next: *const u32,
    pub(crate) next_lines: usize,
}

impl Product {
    pub(crate) unsafe fn run(&self) {
        unreachable!("tiles are not available here")
    }
}

pub(crate) struct ByteProduct {
    pub(crate) x: *const u32,
    pub(crate) x_stride: usize,
    pub(crate) weights: *const u32,
    pub(crate) depth: usize,
    pub(crate) start: *const i32,
    pub(crate) sums: *mut i32,
}

impl ByteProduct {
    pub(crate) unsafe fn store(&self, _: &Tiles) {
        unreachable!("tiles are not available here")
    }
}

pub(crate) struct Strip {
    pub(crate) x: *const u32,
    pub(crate) x_stride: usize,
    pub(crate) columns: [*const u32; 2],
    pub(crate) depth: usize,
    pub(crate) sums: *mut f32,
    pub(crate) sums_stride: usize,
    pub(crate) rows: usize,
}

impl Strip {
    pub(crate) unsafe fn store(&self, _: &Tiles) {
        unreachable!("tiles are not available here")
    }

    pub(crate) unsafe fn add(&self, _: &Tiles) {
        unreachable!("tiles are not available here")
    }
}

//! Places on a page, and how they are turned and scaled.

use pdf_extract::Object;
use pdf_extract::content::Operation;

/// A matrix of the plane.
#[derive(Debug, Clone, Copy)]
pub struct Matrix(pub [f32; 6]);

pub const UNTURNED: Matrix = Matrix([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);

impl Matrix {
    /// `None` where these are not six numbers.
    pub fn of(operands: &[Object]) -> Option<Self> {
        let numbers: Option<Vec<f32>> = operands.iter().map(|one| one.as_float().ok()).collect();
        numbers?.try_into().ok().map(Self)
    }

    /// First this one, then the other.
    pub fn then(self, other: Self) -> Self {
        let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (self.0, other.0);
        Self([a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + l])
    }

    pub fn operation(self) -> Operation {
        Operation::new("cm", self.0.into_iter().map(Object::Real).collect())
    }
}

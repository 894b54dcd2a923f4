//! Where labels stand beside their points: the first place around each that nothing else has.

use super::{MARK, Plane};

/// A character's width and a line's height, about, at the labels' size.
const CHARACTER: f64 = 6.3;
const LINE: f64 = 11.0;
/// From a point's middle, by tries.
const DISTANCES: [f64; 2] = [8.0, 17.0];

/// Places that are taken.
pub struct Labels {
    within: Plane,
    taken: Vec<Plane>,
}

impl Labels {
    /// None is taken yet.
    pub fn new(within: Plane) -> Self {
        Self { within, taken: Vec::new() }
    }

    /// Takes the square around a point.
    pub fn keep_free(&mut self, (x, y): (f64, f64), half: f64) {
        self.taken.push(Plane { left: x - half, right: x + half, top: y - half, bottom: y + half });
    }

    /// Where the label of a point begins (ends, has its middle), at its base line; `None` where there is no room: its point still
    /// says what it is.
    pub fn place(&mut self, (x, y): (f64, f64), label: &str) -> Option<((f64, f64), &'static str)> {
        let width = label.chars().count() as f64 * CHARACTER;
        if label.is_empty() {
            return None;
        }
        let around = DISTANCES.into_iter().flat_map(|far| {
            [(far, 0.0, "start"), (0.0, -far, "middle"), (0.0, far + 1.0, "middle"), (-far, 0.0, "end")]
                .into_iter()
                .chain([(far, -far, "start"), (far, far, "start"), (-far, -far, "end"), (-far, far, "end")])
        });
        let mut places = around.map(|(dx, dy, anchor)| {
            let left = match anchor {
                "start" => x + dx,
                "end" => x + dx - width,
                _ => x - width / 2.0,
            };
            let middle = y + dy;
            let plane = Plane { left, right: left + width, top: middle - LINE / 2.0, bottom: middle + LINE / 2.0 };
            ((x + dx, middle + LINE / 3.0), anchor, plane)
        });
        let is_free = |plane: &Plane| self.is_within(plane) && !self.taken.iter().any(|taken| meet(taken, plane));
        let (at, anchor, plane) = places.find(|(_, _, plane)| is_free(plane))?;
        self.taken.push(plane);
        Some((at, anchor))
    }

    fn is_within(&self, plane: &Plane) -> bool {
        let Plane { left, right, top, bottom } = self.within;
        plane.left >= left + 1.0
            && plane.right <= right + 2.0 * MARK
            && plane.top >= top - LINE
            && plane.bottom <= bottom
    }
}

fn meet(one: &Plane, two: &Plane) -> bool {
    one.left < two.right && two.left < one.right && one.top < two.bottom && two.top < one.bottom
}

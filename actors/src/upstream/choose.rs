//! Which of several engines gets a question: the one that is predicted to begin its answer first. Pure.

/// What is known of an engine when a question comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Look {
    /// What its cache is thought to save of the prompt, less what the order of passages costs for it, in milliseconds.
    pub saves_ms: f64,
    /// Answers that run there.
    pub running: usize,
    /// Whether it did not answer a moment ago.
    pub is_down: bool,
}

/// The numbers of the engines in the order in which they are to be asked. Whoever runs there already takes a part of the engine's time: one
/// more is thought to delay this prompt by a part of what it takes itself, `prompt_ms`. Where nothing tells two apart, the `turn`th is first.
pub(crate) fn in_order(looks: &[Look], prompt_ms: f64, turn: usize) -> Vec<usize> {
    let wait_ms = |look: &Look| look.running as f64 * SHARE * prompt_ms - look.saves_ms;
    let mut order: Vec<usize> = (0..looks.len()).map(|index| (index + turn) % looks.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&looks[*a], &looks[*b]);
        a.is_down.cmp(&b.is_down).then(wait_ms(a).total_cmp(&wait_ms(b)))
    });
    order
}

/// What each running answer delays another prompt by, in parts of that prompt. Engines batch: a decode beside it costs a prefill little, another
/// prefill about its own length.
const SHARE: f64 = 0.25;

#[cfg(test)]
mod tests {
    use super::*;

    fn look(saves_ms: f64, running: usize, is_down: bool) -> Look {
        Look { saves_ms, running, is_down }
    }

    #[test]
    fn the_cache_counts_until_its_engine_is_busier_than_that_is_worth() {
        let idle = look(0.0, 0, false);
        assert_eq!(in_order(&[idle, look(80.0, 0, false)], 100.0, 0), [1, 0]);
        assert_eq!(in_order(&[idle, look(80.0, 3, false)], 100.0, 0), [1, 0], "75 of waiting for 80");
        assert_eq!(in_order(&[idle, look(80.0, 4, false)], 100.0, 0), [0, 1]);
        assert_eq!(in_order(&[look(1e9, 0, true), idle], 100.0, 0), [1, 0], "one that is down is asked last");
    }

    #[test]
    fn equals_take_turns() {
        let idle = [look(0.0, 0, false); 3];
        let firsts: Vec<usize> = (0..6).map(|turn| in_order(&idle, 100.0, turn)[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1, 2]);
        assert_eq!(in_order(&idle, 100.0, 1), [1, 2, 0]);
    }
}

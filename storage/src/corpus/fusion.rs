//! Fuses the two searches' rankings.

/// One search's ranking, best first: for each candidate which one it is, and its score.
pub(super) type Ranking = Vec<(usize, f32)>;

/// PLACEHOLDER
pub(super) fn fuse(vector: &Ranking, text: &Ranking, candidates: usize) -> Vec<f32> {
    let mut fused = vec![0.0; candidates];
    for (ranking, weight) in [(vector, 1.0), (text, 1.0)] {
        for (rank, (candidate, _)) in ranking.iter().enumerate() {
            fused[*candidate] += weight / (60.0 + rank as f32 + 1.0);
        }
    }
    fused
}

//! The order of samples: everything that is compared is spread over the same time.

/// Says whose turn it is, one entry a sample: participant `i` has `counts[i]` turns, as
/// evenly spread as they can be.
pub(crate) fn interleave(counts: &[usize]) -> Vec<usize> {
    let mut turns: Vec<(f64, usize)> = Vec::new();
    for (participant, &count) in counts.iter().enumerate() {
        // The middle of each of `count` equal parts.
        let moments = (0..count).map(|turn| (turn as f64 + 0.5) / count as f64);
        turns.extend(moments.map(|moment| (moment, participant)));
    }
    turns.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    turns
        .into_iter()
        .map(|(_, participant)| participant)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_alternate() {
        assert_eq!(interleave(&[3, 3]), [0, 1, 0, 1, 0, 1]);
        assert_eq!(interleave(&[2, 2, 2]), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn the_rarer_one_is_spread_over_the_whole() {
        let order = interleave(&[15, 3]);
        assert_eq!(order.len(), 18);
        let rare: Vec<_> = (0..18).filter(|&at| order[at] == 1).collect();
        assert_eq!(rare, [3, 9, 15]);
        assert!(interleave(&[]).is_empty() && interleave(&[0]).is_empty());
    }
}

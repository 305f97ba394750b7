//! Drafts copied from the text so far: what followed the last time that its end was written.

/// Longest end of the text that is looked for, tokens.
const LONGEST: usize = 8;

/// What followed the latest of the longest matches of the text's end elsewhere in it, and the
/// match's length, 1 to 8. `None` where the last token is new.
pub(crate) fn find(text: &[u32]) -> Option<(u32, usize)> {
    let (last, before) = text.split_last()?;
    let mut best: Option<(u32, usize)> = None;
    for at in (0..before.len()).rev().filter(|at| before[*at] == *last) {
        let pairs = before[..at].iter().rev().zip(before.iter().rev());
        let length = 1 + pairs.take(LONGEST - 1).take_while(|(a, b)| a == b).count();
        if best.is_none_or(|(_, longest)| length > longest) {
            best = Some((text[at + 1], length));
        }
        if length == LONGEST {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_match_wins_and_of_equals_the_latest() {
        assert_eq!(find(&[1, 2, 3, 9, 2, 3]), Some((9, 2)));
        assert_eq!(find(&[1, 2, 7, 5, 2, 8, 2]), Some((8, 1)));
        assert_eq!(find(&[1, 2, 7, 5, 2, 8, 1, 2]), Some((7, 2)));
    }

    #[test]
    fn a_new_token_has_no_match() {
        assert_eq!(find(&[1, 2, 3]), None);
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[4]), None);
    }

    #[test]
    fn a_repetition_continues_itself() {
        assert_eq!(find(&[5, 5]), Some((5, 1)));
        assert_eq!(find(&[1; 40]), Some((1, LONGEST)));
    }
}

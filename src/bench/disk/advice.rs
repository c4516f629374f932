//! The result in sentences: which volume serves what on this machine.

use super::pattern::Pattern;
use super::results::{Place, Results};
use crate::config::Candidate;
use crate::selftest::report::list;

/// What programs wait for that must not lose anything, such as databases.
const SYNCED: [Pattern; 2] = [Pattern::WriteSync, Pattern::CreateSync];
/// What everything else does.
const DATA: [Pattern; 4] = [Pattern::RandomRead, Pattern::RandomWrite, Pattern::Read, Pattern::Write];
/// A place that has so much of the best one's score is as good: turns differ by more.
const AS_GOOD: f64 = 0.95;
/// A plain directory whose turns differ by this factor says that the machine was busy.
const NOISY: f64 = 1.5;

/// Two or three sentences.
pub(super) fn summary(results: &Results) -> Vec<String> {
    let volumes = results.places.iter().filter(|place| place.candidate.is_some());
    let (unsized_ones, sized): (Vec<&Place>, Vec<&Place>) =
        volumes.partition(|place| place.candidate == Some(Candidate::Directory));
    let enforced = sized.iter().copied().find(|place| place.candidate == Some(Candidate::DirectoryEnforced));
    let of_directory = unsized_ones.first().and_then(|place| directory(results, place, enforced));
    let rest = of_directory.is_some();
    of_directory.into_iter().chain(best(results, &sized, rest)).chain(noise(results)).collect()
}

/// The mean of the ratios (geometric, as they are ratios); `None` where one was not measured.
fn score(results: &Results, place: &Place, patterns: &[Pattern]) -> Option<f64> {
    let product =
        patterns.iter().try_fold(1.0, |product, pattern| Some(product * results.ratio(place, *pattern)?))?;
    Some(f64::powf(product, 1.0 / patterns.len() as f64))
}

/// `enforced` is the directory with an enforced size, where there is one.
fn directory(results: &Results, place: &Place, enforced: Option<&Place>) -> Option<String> {
    let scores = |place| Some((score(results, place, &SYNCED)?, score(results, place, &DATA)?));
    let (synced, data) = scores(place)?;
    let is_left_out =
        || results.left_out.iter().any(|(candidate, _)| *candidate == Candidate::DirectoryEnforced);
    let size = match enforced.and_then(scores) {
        Some((synced, data)) => {
            format!(
                "its size is not enforced. With enforcement=required it is: then it gives {synced:.2} and {data:.2}"
            )
        }
        None if is_left_out() => "its size is not enforced, and cannot be on this filesystem".to_owned(),
        None => "its size is not enforced".to_owned(),
    };
    Some(format!(
        "A directory volume gives {synced:.2} of what the plain directory gives programs that sync, and {data:.2} of \
         other reads and writes; {size}."
    ))
}

/// Which volumes with an enforced size are best at what.
fn best(results: &Results, sized: &[&Place], beside_directories: bool) -> Option<String> {
    let synced = leaders(results, sized, &SYNCED);
    let data = leaders(results, sized, &DATA);
    let many = sized.len() > 1;
    let which = match (beside_directories, many) {
        (true, true) => "Of the volumes with an enforced size, ",
        _ => "",
    };
    let says = |(names, score): &(Vec<&str>, f64), what: &str| {
        let verb = if names.len() == 1 { "gives" } else { "give" };
        let most = if many { "most" } else { "this much" };
        format!("{} {verb} {most} to {what} ({score:.2} of the plain directory)", list(names))
    };
    const TO_SYNCED: &str = "programs that sync, such as databases";
    const TO_DATA: &str = "other reads and writes";
    Some(match (synced, data) {
        (Some(synced), Some(data)) => {
            format!("{which}{}, and {}.", says(&synced, TO_SYNCED), says(&data, TO_DATA))
        }
        // A raw device has no files of its own to make.
        (None, Some(data)) => format!("{which}{}.", says(&data, TO_DATA)),
        (Some(synced), None) => format!("{which}{}.", says(&synced, TO_SYNCED)),
        (None, None) => return None,
    })
}

/// The names of the best and of those that are as good, with the best score.
fn leaders<'a>(results: &Results, places: &[&'a Place], patterns: &[Pattern]) -> Option<(Vec<&'a str>, f64)> {
    let scores: Vec<(&str, f64)> =
        places.iter().filter_map(|place| Some((place.name(), score(results, place, patterns)?))).collect();
    let best = scores.iter().map(|(_, score)| *score).max_by(f64::total_cmp)?;
    Some((scores.iter().filter(|(_, score)| *score >= best * AS_GOOD).map(|(name, _)| *name).collect(), best))
}

fn noise(results: &Results) -> Option<String> {
    let plain = results.plain()?;
    let spread = |pattern: Pattern| Some((pattern, plain.sample(pattern)?.spread()?));
    let (pattern, spread) =
        Pattern::ALL.into_iter().filter_map(spread).max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (spread >= NOISY).then(|| {
        format!(
            "The machine was busy: the plain directory's own figures differ by a factor of {spread:.1} between turns \
             ({}), so smaller differences say little; use more --turns, or a quiet moment.",
            pattern.title()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;

    const ONE: [f64; 6] = [1.0; 6];

    #[test]
    fn a_summary_names_the_best_volume_for_each_use() {
        let said = summary(&results(&[
            (None, ONE),
            (Some(Candidate::Ext4), [0.8, 0.8, 0.4, 0.4, 0.8, 0.8]),
            (Some(Candidate::Xfs), [0.5, 0.5, 0.6, 0.6, 0.5, 0.5]),
            (Some(Candidate::XfsThick), [0.5, 0.5, 0.58, 0.58, 0.5, 0.5]),
            (Some(Candidate::Block), [0.9, 0.9, 0.9, f64::NAN, 0.9, 0.9]),
            (Some(Candidate::Directory), [0.98, 0.98, 1.0, 1.0, 0.98, 0.98]),
        ]));
        assert_eq!(
            said,
            [
                "A directory volume gives 1.00 of what the plain directory gives programs that sync, and 0.98 of other \
                 reads and writes; its size is not enforced.",
                "Of the volumes with an enforced size, xfs and xfs-thick give most to programs that sync, such as \
                 databases (0.60 of the plain directory), and block gives most to other reads and writes (0.90 of the \
                 plain directory).",
            ]
        );
    }

    #[test]
    fn a_directory_says_whether_it_can_have_a_size() {
        let mut results = results(&[
            (None, ONE),
            (Some(Candidate::Directory), ONE),
            (Some(Candidate::DirectoryEnforced), [0.5; 6]),
        ]);
        let said = summary(&results);
        assert!(
            said[0].ends_with("With enforcement=required it is: then it gives 0.50 and 0.50."),
            "{said:?}"
        );
        assert!(said[1].starts_with("directory-enforced gives this much to programs that sync"), "{said:?}");
        results.places.pop();
        results.left_out.push((Candidate::DirectoryEnforced, "no quotas".to_owned()));
        let said = summary(&results);
        assert!(said[0].ends_with("its size is not enforced, and cannot be on this filesystem."), "{said:?}");
    }

    #[test]
    fn one_volume_is_not_the_best_of_many() {
        let said =
            summary(&results(&[(None, ONE), (Some(Candidate::Block), [0.5, 0.5, 0.5, f64::NAN, 0.5, 0.5])]));
        assert_eq!(said, ["block gives this much to other reads and writes (0.50 of the plain directory)."]);
        assert!(summary(&results(&[(None, ONE)])).is_empty());
    }

    #[test]
    fn a_busy_machine_is_named() {
        let mut results = results(&[(None, ONE), (Some(Candidate::Ext4), ONE)]);
        results.places[0].samples[2] = [1.0, 2.5].into_iter().collect();
        let said = summary(&results);
        let last = said.last().unwrap();
        assert!(last.contains("a factor of 2.5") && last.contains("(Write of 4 KiB and fsync)"), "{last}");
    }
}

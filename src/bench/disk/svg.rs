//! The result as a picture, for pages that show no text.

use std::fmt::Write;

use super::pattern::Pattern;
use super::results::Results;
use crate::bench::output::figure;

/// Pixels.
const LABEL: f64 = 132.0;
const WHOLE: f64 = 150.0;
const LONGEST: f64 = WHOLE * 1.5;
const ROW: f64 = 16.0;
const PANEL: f64 = LABEL + LONGEST + 110.0;
const TITLE: f64 = 46.0;
const HEAD: f64 = 26.0;

/// A bar for the ratio of each place, in two columns of patterns; the line is the plain directory.
pub(super) fn svg(results: &Results) -> String {
    let panel = HEAD + results.places.len() as f64 * ROW + 12.0;
    let rows = Pattern::ALL.len().div_ceil(2) as f64;
    let (width, height) = (2.0 * PANEL, TITLE + rows * panel);
    let disk = &results.disk;
    let title = escaped(&format!("{}, {}, Linux {}", disk.dir, disk.filesystem, disk.kernel));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"18\" font-size=\"13\" font-weight=\"bold\">What volumes give of the disk (1.00: a plain \
         directory)</text>\n\
         <text x=\"8\" y=\"34\" fill=\"#555\">{title}: medians of {} turns</text>\n",
        disk.turns
    );
    for (number, pattern) in Pattern::ALL.into_iter().enumerate() {
        let (x, y) = ((number % 2) as f64 * PANEL, TITLE + (number / 2) as f64 * panel);
        draw(&mut text, results, pattern, (x, y));
    }
    text.push_str("</svg>\n");
    text
}

fn draw(text: &mut String, results: &Results, pattern: Pattern, (x, y): (f64, f64)) {
    let (left, top) = (x + LABEL, y + HEAD);
    let (title, unit) = (pattern.title(), pattern.unit());
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{}\" font-weight=\"bold\">{title} ({unit})</text>",
        x + 8.0,
        y + 16.0
    );
    let mut row = top;
    for place in &results.places {
        if let (Some(median), Some(ratio)) = (place.median(pattern), results.ratio(place, pattern)) {
            let (base, length) = (row + 11.0, (ratio * WHOLE).clamp(0.0, LONGEST));
            let colour = if place.candidate.is_none() { "#888" } else { "#3a7ca5" };
            let _ = writeln!(
                text,
                "<text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{}</text><rect x=\"{left}\" y=\"{}\" \
                 width=\"{length:.1}\" height=\"12\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{base}\">{ratio:.2} \
                 <tspan fill=\"#777\">({})</tspan></text>",
                left - 6.0,
                escaped(place.name()),
                row + 1.0,
                left + length + 5.0,
                figure(median)
            );
            row += ROW;
        }
    }
    let one = left + WHOLE;
    let _ = writeln!(
        text,
        "<line x1=\"{one}\" y1=\"{top}\" x2=\"{one}\" y2=\"{row}\" stroke=\"#c33\" stroke-dasharray=\"3 2\"/>"
    );
}

/// Text as it is written in XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;
    use crate::config::Candidate;

    #[test]
    fn a_picture_has_a_bar_for_each_figure() {
        let picture = svg(&results(&[
            (None, [100.0, 1.0, 1.0, 4.0, 1.0, 1.0]),
            (Some(Candidate::Block), [50.0, 9.0, 1.0, f64::NAN, 1.0, 1.0]),
        ]));
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
        assert!(picture.contains("/d &lt;&amp;&gt;, ext4 on /dev/vda"), "{picture}");
        // One is the background; a device has no bar for new files.
        assert_eq!(picture.matches("<rect ").count(), 1 + 6 + 5);
        assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
        assert!(picture.contains("width=\"75.0\"") && picture.contains(">0.50 <tspan"), "{picture}");
        assert!(
            picture.contains(&format!("width=\"{LONGEST:.1}\"")) && picture.contains(">9.00 "),
            "{picture}"
        );
    }
}

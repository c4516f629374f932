//! The figures as people read them.

use comfy_table::{CellAlignment, Table, presets};

use super::figures::{Measured, Row, compare};
use crate::bench::life::Rpc;
use crate::bench::output::figure;
use crate::bench::sample::Sample;

/// One table for each driver; for two of them, a third that compares them.
pub(super) fn tables(drivers: &[Measured]) -> String {
    let mut text: Vec<String> = drivers.iter().map(driver).collect();
    if let [first, second] = drivers {
        text.push(comparison(first, second));
    }
    text.join("\n\n")
}

fn driver(driver: &Measured) -> String {
    let has = |rpc: &Rpc| driver.rows.iter().any(|(_, figures)| figures.rpcs().any(|(of, _)| of == *rpc));
    let rpcs: Vec<Rpc> = Rpc::ALL.into_iter().filter(has).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let names = rpcs.iter().map(|rpc| rpc.as_str());
    table.set_header(["", "lives/s", "life"].into_iter().chain(names));
    for (row, figures) in &driver.rows {
        let times = |rpc: &Rpc| figures.rpcs().find(|(of, _)| of == rpc).map_or_else(dash, |(_, s)| both(s));
        let head = [row.title(), shown(figures.rates.median()), both(&figures.lives)];
        table.add_row(head.into_iter().chain(rpcs.iter().map(times)));
    }
    let parameters = match driver.parameters.as_str() {
        "" => String::new(),
        parameters => format!(", {parameters}"),
    };
    format!("{} ({}{parameters}): milliseconds, p50 (p99)\n\n{}", driver.name, driver.uri, finished(table))
}

fn comparison(first: &Measured, second: &Measured) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (number, ((row, a), (_, b))) in first.rows.iter().zip(&second.rows).enumerate() {
        let all = compare(a, b);
        if number == 0 {
            table.set_header([String::new()].into_iter().chain(all.iter().map(|(name, _)| name.clone())));
        }
        let cell = |(_, [a, b, ratio]): (String, [Option<f64>; 3])| {
            format!("{} ({} : {})", shown(ratio), shown(a), shown(b))
        };
        table.add_row([row.title()].into_iter().chain(all.into_iter().map(cell)));
    }
    format!("{} divided by {}: ratio (both medians)\n\n{}", first.name, second.name, finished(table))
}

impl Row {
    fn title(self) -> String {
        match self {
            Row::Clients(1) => "1 client".to_owned(),
            Row::Clients(number) => format!("{number} clients"),
            Row::Beside(number) => format!("beside {number} volumes"),
        }
    }
}

fn both(sample: &Sample) -> String {
    format!("{} ({})", shown(sample.median()), shown(sample.percentile(99.0)))
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(dash, figure)
}

fn dash() -> String {
    "-".to_owned()
}

fn finished(mut table: Table) -> String {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::measured;
    use super::*;

    #[test]
    fn one_driver_has_its_calls_and_two_are_compared() {
        let one = tables(&[measured("a 1", 2)]);
        assert!(one.starts_with("a 1 (unix:///a, a=b): milliseconds, p50 (p99)\n\n"), "{one}");
        let header = one.lines().nth(2).unwrap();
        assert!(header.contains("CreateVolume") && !header.contains("NodeStageVolume"), "{one}");
        let row = |text: &str, name: &str| {
            let found = text.lines().rfind(|line| line.trim().starts_with(name));
            found.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row(&one, "1 client"), "1 client 10.0 4.00 (4.00) 2.00 (2.00) 2.00 (2.00)");
        let two = tables(&[measured("a 1", 2), measured("b 2", 8)]);
        assert!(
            two.contains("\n\nb 2 (") && two.contains("\n\na 1 divided by b 2: ratio (both medians)\n"),
            "{two}"
        );
        assert!(row(&two, "beside 100 volumes").contains("1.00 (10.0 : 10.0) 0.25 (4.00 : 16.0)"), "{two}");
    }
}

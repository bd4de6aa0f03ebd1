//! Rows of a table become series of a plot.

use super::{Point, Series};
use std::collections::BTreeMap;

/// Points with what a reader is told of each, such as `["64 GPUs", "compression 4"]`: equally many
/// parts for every point, of which empty ones are not shown. Points of which all parts are equal
/// are one series, from left to right, which is named by the parts in which series differ; a single
/// one is named `single`. The first value is what all have in common.
pub fn group(
    points: impl IntoIterator<Item = (Vec<String>, Point)>,
    single: &str,
) -> (String, Vec<Series>) {
    let mut groups: Vec<(Vec<String>, Vec<Point>)> = Vec::new();
    let mut places: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for (parts, point) in points {
        match places.get(&parts) {
            Some(at) => groups[*at].1.push(point),
            None => {
                places.insert(parts.clone(), groups.len());
                groups.push((parts, vec![point]));
            }
        }
    }
    let first = groups.first().map_or(Vec::new(), |group| group.0.clone());
    let is_common = |at: &usize| groups.iter().all(|(parts, _)| parts[*at] == first[*at]);
    let (common, own): (Vec<usize>, Vec<usize>) = (0..first.len()).partition(is_common);
    let pick = |parts: &[String], which: &[usize]| {
        let picked = which.iter().map(|at| parts[*at].as_str());
        let picked: Vec<&str> = picked.filter(|part| !part.is_empty()).collect();
        picked.join(", ")
    };
    let in_common = pick(&first, &common);
    let series = groups.into_iter().map(|(parts, mut points)| {
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let name = match own.is_empty() {
            true => single.into(),
            false => pick(&parts, &own),
        };
        Series::line(name, points)
    });
    (in_common, series.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_named_by_what_differs() {
        let point = |parts: [&str; 3], x: f64| (parts.map(String::from).to_vec(), (x, x).into());
        let (common, series) = group(
            [
                point(["f32", "", "ring"], 2.0),
                point(["f32", "", "tree"], 1.0),
                point(["f32", "", "ring"], 1.0),
            ],
            "measured",
        );
        assert_eq!(common, "f32");
        assert_eq!((&*series[0].name, &*series[1].name), ("ring", "tree"));
        assert_eq!(series[0].points, [(1.0, 1.0).into(), (2.0, 2.0).into()]);
        let (common, series) = group([point(["f32", "", "ring"], 2.0)], "measured");
        assert_eq!((&*common, &*series[0].name), ("f32, ring", "measured"));
        assert!(group([], "measured").1.is_empty());
    }
}

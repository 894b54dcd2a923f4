//! Charts.

use super::*;

fn point(x: f64, y: f64, label: &str) -> Point {
    Point {
        x,
        y,
        y_span: Some([y - 0.1, y + 0.1]),
        x_span: Some([x * 0.9, x * 1.1]),
        label: label.into(),
        hover: label.into(),
    }
}

fn chart(series: Vec<Series>) -> Chart {
    let axis = |label: &str| Axis { label: label.into(), least: None };
    Chart { title: "Quality".into(), x: axis("TTFT, ms"), y: Axis { least: Some((0.0, 1.0)), ..axis("F1") }, series }
}

fn series(name: &str, points: Vec<Point>) -> Series {
    Series { name: name.into(), points, line: true, marks: true }
}

/// Every element is closed by its own name, and between elements no bracket stands.
fn is_well_formed(xml: &str) -> bool {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml;
    while let Some(at) = rest.find(['<', '>']) {
        let Some(end) = rest[at..].find('>').filter(|_| rest[at..].starts_with('<')) else { return false };
        let tag = &rest[at + 1..at + end];
        if tag.contains('<') || !tag.matches('"').count().is_multiple_of(2) {
            return false;
        }
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return false;
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        rest = &rest[at + end + 1..];
    }
    open.is_empty()
}

#[test]
fn every_series_and_point_is_there() {
    let blend = series("blend", vec![point(10.0, 0.5, "5 %"), point(12.0, 0.9, "15 %")]);
    let drawn = page(&[chart(vec![series("full", vec![point(30.0, 1.0, "full")]), blend]), chart(Vec::new())]);
    assert!(is_well_formed(&drawn), "{drawn}");
    for words in ["viewBox=\"0 0 960 920\"", "Quality", "TTFT, ms", "F1", ">full<", ">blend<", ">5 %<", ">15 %<"] {
        assert!(drawn.contains(words), "no {words}");
    }
    assert_eq!(drawn.matches("class=\"span\"").count(), 6, "both intervals of each point");
    assert_eq!(drawn.matches("class=\"line\"").count(), 2, "one through two points, and the legend's");
    assert!(drawn.contains("prefers-color-scheme:dark") && !drawn.contains("<script"));
}

#[test]
fn hostile_names_stay_text() {
    let hostile = "</text><script>alert('1')</script>\"&amp;\u{0}\u{1b}[31m\u{ffff}";
    let mut hostile_chart = chart(vec![series(hostile, vec![point(1.0, 0.5, hostile)])]);
    (hostile_chart.title, hostile_chart.x.label, hostile_chart.y.label) =
        (hostile.into(), hostile.into(), hostile.into());
    let drawn = page(&[hostile_chart]);
    assert!(is_well_formed(&drawn), "{drawn}");
    assert!(!drawn.contains("<script") && !drawn.contains('\u{1b}') && !drawn.contains('\u{0}'));
    assert!(drawn.contains("&lt;/text&gt;&lt;script&gt;alert(&apos;1&apos;)&lt;/script&gt;&quot;&amp;amp;"));
    assert!(
        !is_well_formed("<a><b></a></b>") && !is_well_formed("<a>></a>") && !is_well_formed("<a>"),
        "the check checks"
    );
}

#[test]
fn values_that_are_no_numbers_are_left_out() {
    let mut odd = point(2.0, 0.5, "odd");
    odd.y_span = Some([f64::NAN, f64::INFINITY]);
    let points = vec![point(f64::NAN, 0.5, "nan"), point(1.0, f64::INFINITY, "inf"), odd];
    let drawn = page(&[chart(vec![series("s", points)])]);
    assert!(is_well_formed(&drawn));
    assert!(!drawn.contains("NaN") && !drawn.contains("inf") && drawn.contains(">odd<"), "{drawn}");
}

#[test]
fn labels_do_not_lie_on_each_other() {
    let points: Vec<Point> = (0..40).map(|at| point(10.0 + f64::from(at % 3), 0.9, &format!("label {at}"))).collect();
    let mut labels = Labels::new(PLANE);
    let places: Vec<_> = points.iter().filter_map(|it| labels.place((200.0 + it.x, 200.0), &it.label)).collect();
    assert!((3..40).contains(&places.len()), "some have room, not all: {}", places.len());
    assert!(labels.place((500.0, 300.0), "free").is_some());
    assert!(Labels::new(PLANE).place((500.0, 300.0), &"x".repeat(200)).is_none(), "no wider than the chart");
    let drawn = page(&[chart(vec![series("s", points)])]);
    assert!(drawn.matches("<title>label").count() == 40, "each says what it is all the same");
}

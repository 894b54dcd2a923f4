//! Charts as SVG: points with intervals, and lines; no script, legible on light and on dark.

mod axis;
mod labels;

use axis::Scale;
use labels::Labels;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 460.0;
/// Where points may lie, from the chart's upper left corner.
const PLANE: Plane = Plane { left: 70.0, right: 690.0, top: 46.0, bottom: 400.0 };
/// Of series on light and on dark ground (after Okabe and Ito), and how many shapes marks have: 35 series look different.
const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#f28e4b"),
    ("#008060", "#3ec9a0"),
    ("#b0457e", "#e58cc0"),
    ("#8a6d00", "#e6c84b"),
    ("#5d4fb3", "#a99cf0"),
    ("#555555", "#bbbbbb"),
];
const SHAPES: usize = 5;
/// Names in the legend are cut behind so many characters, labels beside points earlier.
const MOST_NAME: usize = 38;
const MOST_LABEL: usize = 24;
/// Half of a mark's width.
const MARK: f64 = 4.5;

const SHARED: &str = "text{font:12px system-ui,sans-serif}text.small{font-size:10.5px}text.title{font-size:15px;font-weight:600}\
.frame,.span,.line{fill:none}.span{opacity:.4}.line{stroke-width:1.5;opacity:.8}";
const LIGHT: &str = ".ground{fill:#fff}text{fill:#222}.grid{stroke:#ddd}.frame{stroke:#888}";
const DARK: &str = ".ground{fill:#16181c}text{fill:#e6e6e6}.grid{stroke:#33373d}.frame{stroke:#8a8f98}";

/// One chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    /// At most 35 look different.
    pub series: Vec<Series>,
}

/// What is measured along an edge.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    pub label: String,
    /// What it shows at least; values beyond widen it.
    pub least: Option<(f64, f64)>,
}

/// Points that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub name: String,
    /// In the order in which a line goes through them.
    pub points: Vec<Point>,
    /// Whether a line goes through them.
    pub line: bool,
    /// Whether each has a mark.
    pub marks: bool,
}

/// One value of another.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub x_span: Option<[f64; 2]>,
    pub y_span: Option<[f64; 2]>,
    /// Written beside it, where there is room.
    pub label: String,
    /// Shown where a pointer rests on it.
    pub hover: String,
}

/// A rectangle: y grows downwards.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Plane {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// All charts, one below the other, as the text of an SVG file. Points that are not finite are left out.
pub fn page(charts: &[Chart]) -> String {
    let height = HEIGHT * charts.len().max(1) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <style>{}</style>\n<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        style()
    );
    for (at, chart) in charts.iter().enumerate() {
        put(&mut out, format_args!("<g transform=\"translate(0 {})\">\n", HEIGHT * at as f64));
        draw(&mut out, chart);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, chart: &Chart) {
    let points = || chart.series.iter().flat_map(|series| &series.points).filter(|it| is_finite(it));
    let all = |value: fn(&Point) -> f64, span: fn(&Point) -> Option<[f64; 2]>| {
        points().flat_map(|it| [value(it)].into_iter().chain(span(it).into_iter().flatten())).collect::<Vec<_>>()
    };
    let x = Scale::new(&all(|it| it.x, |it| it.x_span), chart.x.least, (PLANE.left, PLANE.right));
    let y = Scale::new(&all(|it| it.y, |it| it.y_span), chart.y.least, (PLANE.bottom, PLANE.top));
    put(out, format_args!("<title>{}</title>\n", escape(&chart.title)));
    text(out, (PLANE.left, 26.0), "title", &chart.title, "start");
    frame(out, chart, &x, &y);
    let mut labels = Labels::new(PLANE);
    for at in points().map(|it| (x.place(it.x), y.place(it.y))) {
        labels.keep_free(at, MARK);
    }
    // Nothing is drawn over them.
    let mut above = String::new();
    for (index, series) in chart.series.iter().enumerate() {
        put(out, format_args!("<g class=\"c{}\">\n", index % COLOURS.len()));
        lines(out, series, &x, &y);
        for point in series.points.iter().filter(|it| is_finite(it)) {
            let at = (x.place(point.x), y.place(point.y));
            spans(out, point, at, &x, &y);
            if series.marks {
                let mark = mark(index, at);
                put(out, format_args!("<g>{mark}<title>{}</title></g>\n", escape(&point.hover)));
            }
            let label = cut(&point.label, MOST_LABEL);
            if let Some((place, anchor)) = labels.place(at, &label) {
                text(&mut above, place, "small", &label, anchor);
            }
        }
        legend(out, index, series);
        out.push_str("</g>\n");
    }
    out.push_str(&above);
}

/// Rules of colour for light ground, and for dark where whoever shows the file says so.
fn style() -> String {
    let colours = |ground: &str, of: fn(&(&'static str, &'static str)) -> &'static str| {
        let series = COLOURS.iter().map(of).enumerate();
        let rules = series.map(|(at, c)| format!(".c{at} .mark{{fill:{c}}}.c{at} .line,.c{at} .span{{stroke:{c}}}"));
        format!("{ground}{}", rules.collect::<String>())
    };
    let (light, dark) = (colours(LIGHT, |it| it.0), colours(DARK, |it| it.1));
    format!("{SHARED}{light}@media(prefers-color-scheme:dark){{{dark}}}")
}

/// The edges, their ticks and what they show.
fn frame(out: &mut String, chart: &Chart, x: &Scale, y: &Scale) {
    let Plane { left, right, top, bottom } = PLANE;
    for (value, name) in x.ticks() {
        let at = x.place(value);
        put(out, format_args!("<path class=\"grid\" d=\"M{at:.1} {top}V{bottom}\"/>\n"));
        text(out, (at, bottom + 16.0), "small", &name, "middle");
    }
    for (value, name) in y.ticks() {
        let at = y.place(value);
        put(out, format_args!("<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/>\n"));
        text(out, (left - 6.0, at + 3.5), "small", &name, "end");
    }
    put(out, format_args!("<path class=\"frame\" d=\"M{left} {top}V{bottom}H{right}\"/>\n"));
    text(out, (left.midpoint(right), bottom + 38.0), "", &chart.x.label, "middle");
    let middle = top.midpoint(bottom);
    let turned = format!("<text transform=\"translate(20 {middle}) rotate(-90)\" text-anchor=\"middle\">");
    put(out, format_args!("{turned}{}</text>\n", escape(&chart.y.label)));
}

fn lines(out: &mut String, series: &Series, x: &Scale, y: &Scale) {
    let points: Vec<&Point> = series.points.iter().filter(|it| is_finite(it)).collect();
    if !series.line || points.len() < 2 {
        return;
    }
    let places = points.iter().map(|it| format!("{:.1} {:.1}", x.place(it.x), y.place(it.y)));
    put(out, format_args!("<path class=\"line\" d=\"M{}\"/>\n", places.collect::<Vec<_>>().join("L")));
}

fn spans(out: &mut String, point: &Point, (at_x, at_y): (f64, f64), x: &Scale, y: &Scale) {
    if let Some([low, high]) = point.x_span.filter(|span| span.iter().all(|it| it.is_finite())) {
        put(out, format_args!("<path class=\"span\" d=\"M{:.1} {at_y:.1}H{:.1}\"/>\n", x.place(low), x.place(high)));
    }
    if let Some([low, high]) = point.y_span.filter(|span| span.iter().all(|it| it.is_finite())) {
        put(out, format_args!("<path class=\"span\" d=\"M{at_x:.1} {:.1}V{:.1}\"/>\n", y.place(low), y.place(high)));
    }
}

/// A series' mark: shapes tell series apart, too.
fn mark(series: usize, (x, y): (f64, f64)) -> String {
    let (l, r, u, d) = (x - MARK, x + MARK, y - MARK, y + MARK);
    match series % SHAPES {
        0 => format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{MARK}\"/>"),
        1 => format!("<path class=\"mark\" d=\"M{l:.1} {u:.1}H{r:.1}V{d:.1}H{l:.1}Z\"/>"),
        2 => format!("<path class=\"mark\" d=\"M{x:.1} {u:.1}L{r:.1} {d:.1}H{l:.1}Z\"/>"),
        3 => format!("<path class=\"mark\" d=\"M{x:.1} {u:.1}L{r:.1} {y:.1}L{x:.1} {d:.1}L{l:.1} {y:.1}Z\"/>"),
        _ => format!("<path class=\"mark\" d=\"M{x:.1} {d:.1}L{r:.1} {u:.1}H{l:.1}Z\"/>"),
    }
}

fn legend(out: &mut String, index: usize, series: &Series) {
    let at = (PLANE.right + 34.0, PLANE.top + 8.0 + 19.0 * index as f64);
    if series.line && series.points.len() > 1 {
        put(out, format_args!("<path class=\"line\" d=\"M{} {}h22\"/>\n", at.0 - 11.0, at.1));
    }
    if series.marks {
        put(out, format_args!("{}\n", mark(index, at)));
    }
    text(out, (at.0 + 16.0, at.1 + 4.0), "", &cut(&series.name, MOST_NAME), "start");
}

fn text(out: &mut String, (x, y): (f64, f64), class: &str, text: &str, anchor: &str) {
    let text = escape(text);
    put(
        out,
        format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"),
    );
}

fn put(out: &mut String, part: std::fmt::Arguments<'_>) {
    out.push_str(&part.to_string());
}

fn is_finite(point: &Point) -> bool {
    point.x.is_finite() && point.y.is_finite()
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Text as XML has it: without what it cannot hold at all.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;

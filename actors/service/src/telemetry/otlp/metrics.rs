//! Metrics as OTLP has them, from an exposition in Prometheus's text. Pure.
//!
//! Names stay as `/metrics` has them, so that boards and alerts work either way. Counters and histograms are cumulative since the
//! process's start.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::Resource;

use crate::telemetry::metrics::{Kind, METRICS};
use crate::telemetry::samples::{Sample, Samples};

/// Of one export.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// When counting began, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// When the samples were taken.
    pub now_unix_ms: u64,
}

/// What is sent: every metric of the program's table that has samples.
pub fn request(samples: &Samples, times: Times, resource: &Resource) -> ExportMetricsServiceRequest {
    let times = Nanoseconds { start: times.started_unix_ms * 1_000_000, now: times.now_unix_ms * 1_000_000 };
    let metrics = METRICS.iter().filter_map(|described| {
        let data = data(&described.kind, described.name, samples, times)?;
        let (name, description, unit) = (described.name.to_owned(), described.what.to_owned(), unit(described.name));
        Some(Metric { name, description, unit: unit.to_owned(), metadata: Vec::new(), data: Some(data) })
    });
    let scope = InstrumentationScope { name: "ragstone".to_owned(), ..InstrumentationScope::default() };
    let scope = ScopeMetrics { scope: Some(scope), metrics: metrics.collect(), schema_url: String::new() };
    let ResourceAttributesWithSchema { attributes, schema_url } = resource.into();
    let resource =
        opentelemetry_proto::tonic::resource::v1::Resource { attributes: attributes.0, ..Default::default() };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource),
            scope_metrics: vec![scope],
            schema_url: schema_url.unwrap_or_default(),
        }],
    }
}

#[derive(Clone, Copy)]
struct Nanoseconds {
    start: u64,
    now: u64,
}

/// UCUM's word, as OpenTelemetry wants it; none for counts: collectors name gauges of unit `1` anew (`_ratio`).
fn unit(name: &str) -> &'static str {
    let base = name.strip_suffix("_total").unwrap_or(name);
    match base.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "",
    }
}

fn data(kind: &Kind, name: &str, samples: &Samples, times: Nanoseconds) -> Option<metric::Data> {
    let cumulative = AggregationTemporality::Cumulative.into();
    match kind {
        Kind::Counter => {
            let data_points = points(samples.named(name), times.start, times.now);
            let sum = Sum { data_points, aggregation_temporality: cumulative, is_monotonic: true };
            (!sum.data_points.is_empty()).then_some(metric::Data::Sum(sum))
        }
        Kind::Gauge => {
            let data_points = points(samples.named(name), 0, times.now);
            (!data_points.is_empty()).then_some(metric::Data::Gauge(Gauge { data_points }))
        }
        Kind::Histogram => {
            let data_points = histograms(name, samples, times);
            let histogram = Histogram { data_points, aggregation_temporality: cumulative };
            (!histogram.data_points.is_empty()).then_some(metric::Data::Histogram(histogram))
        }
    }
}

fn points<'a>(samples: impl Iterator<Item = &'a Sample>, start: u64, now: u64) -> Vec<NumberDataPoint> {
    let point = |sample: &Sample| NumberDataPoint {
        attributes: attributes(&sample.labels),
        start_time_unix_nano: start,
        time_unix_nano: now,
        value: Some(number_data_point::Value::AsDouble(sample.value)),
        ..NumberDataPoint::default()
    };
    samples.map(point).collect()
}

type Labels = Vec<(String, String)>;

/// Prometheus has a series for each bucket, which counts those below it, too; OTLP has one point with a count for each bucket.
fn histograms(name: &str, samples: &Samples, times: Nanoseconds) -> Vec<HistogramDataPoint> {
    let mut buckets: BTreeMap<Labels, Vec<(f64, u64)>> = BTreeMap::new();
    for sample in samples.named(&format!("{name}_bucket")) {
        let Some(bound) = sample.label("le").and_then(|le| le.parse().ok()) else { continue };
        let labels = sample.labels.iter().filter(|(label, _)| label != "le").cloned().collect();
        buckets.entry(labels).or_default().push((bound, sample.value as u64));
    }
    let point = |(labels, mut buckets): (Labels, Vec<(f64, u64)>)| {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut below = 0;
        let counts = buckets.iter().map(|(_, count)| {
            let own = count.saturating_sub(below);
            below = *count;
            own
        });
        let bucket_counts = counts.collect();
        let bounds = buckets.iter().map(|(bound, _)| *bound).filter(|bound| bound.is_finite());
        let sum =
            samples.named(&format!("{name}_sum")).find(|sample| sample.labels == labels).map(|sample| sample.value);
        HistogramDataPoint {
            attributes: attributes(&labels),
            start_time_unix_nano: times.start,
            time_unix_nano: times.now,
            count: below,
            sum,
            bucket_counts,
            explicit_bounds: bounds.collect(),
            ..HistogramDataPoint::default()
        }
    };
    buckets.into_iter().map(point).collect()
}

fn attributes(labels: &[(String, String)]) -> Vec<KeyValue> {
    let attribute = |(key, value): &(String, String)| KeyValue {
        key: key.clone(),
        value: Some(AnyValue { value: Some(Value::StringValue(value.clone())) }),
        ..KeyValue::default()
    };
    labels.iter().map(attribute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# TYPE ragstone_requests_total counter
ragstone_requests_total{path=\"/v1/{model:.+}\",method=\"GET\",status=\"200\"} 3
# TYPE ragstone_tier_bytes gauge
ragstone_tier_bytes{tier=\"host\"} 1024
# TYPE ragstone_rerank_seconds histogram
ragstone_rerank_seconds_bucket{by=\"a\",le=\"0.1\"} 1
ragstone_rerank_seconds_bucket{by=\"a\",le=\"0.5\"} 4
ragstone_rerank_seconds_bucket{by=\"a\",le=\"+Inf\"} 5
ragstone_rerank_seconds_sum{by=\"a\"} 7.5
ragstone_rerank_seconds_count{by=\"a\"} 5
ragstone_nobody_knows 1
";

    fn metrics() -> Vec<Metric> {
        let times = Times { started_unix_ms: 10, now_unix_ms: 20 };
        let resource = Resource::builder_empty().with_service_name("kb").build();
        let mut request = request(&Samples::read(TEXT).unwrap(), times, &resource);
        let mut of_resource = request.resource_metrics.remove(0);
        assert_eq!(of_resource.resource.unwrap().attributes[0].key, "service.name");
        of_resource.scope_metrics.remove(0).metrics
    }

    #[test]
    fn what_the_table_has_is_sent_with_its_kind_unit_and_labels() {
        let metrics = metrics();
        let named = |name: &str| metrics.iter().find(|metric| metric.name == name).unwrap();
        assert_eq!(metrics.len(), 3, "what nobody described is left out");
        let Some(metric::Data::Sum(sum)) = &named("ragstone_requests_total").data else { panic!("no sum") };
        assert!(sum.is_monotonic && sum.data_points[0].start_time_unix_nano == 10_000_000);
        assert_eq!(sum.data_points[0].attributes.len(), 3);
        assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsDouble(3.0)));
        let bytes = named("ragstone_tier_bytes");
        assert_eq!((bytes.unit.as_str(), bytes.description.is_empty()), ("By", false));
        assert!(matches!(bytes.data, Some(metric::Data::Gauge(_))));
        assert!(metrics.iter().all(|metric| metric.unit != "1"), "it would get another name behind a collector");
    }

    #[test]
    fn a_histogram_is_one_point_with_a_count_for_each_bucket() {
        let metrics = metrics();
        let found = metrics.iter().find(|metric| metric.name == "ragstone_rerank_seconds").unwrap();
        let Some(metric::Data::Histogram(histogram)) = &found.data else { panic!("no histogram") };
        let [point] = &histogram.data_points[..] else { panic!("not one point") };
        assert_eq!((point.count, point.sum, found.unit.as_str()), (5, Some(7.5), "s"));
        assert_eq!((&point.bucket_counts[..], &point.explicit_bounds[..]), (&[1, 3, 1][..], &[0.1, 0.5][..]));
        assert_eq!(point.attributes.len(), 1, "`le` is no label of it");
    }
}

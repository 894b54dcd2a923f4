use proptest::prelude::*;

use super::*;

fn grid() -> CostGrid {
    let text = r#"{"source": "by hand", "kv_bytes_per_token": 2, "cached_tokens": [0, 100, 300], "new_tokens": [10, 20],
        "time_us": [[1, 3], [5, 11], [9, 27]]}"#;
    CostGrid::from_json(text).unwrap()
}

#[test]
fn between_the_points_it_is_bilinear() {
    let grid = grid();
    assert_eq!((grid.prefill_us(0, 10), grid.prefill_us(300, 20)), (1.0, 27.0));
    // Algorithm 1: T_l = 1 + 0.5 (5 - 1) = 3, T_h = 3 + 0.5 (11 - 3) = 7, T = 3 + 0.5 (7 - 3).
    assert_eq!(grid.prefill_us(50, 15), 5.0);
    // T_l = 5 + 0.25 (9 - 5) = 6, T_h = 11 + 0.25 (27 - 11) = 15, T = 6 + 0.1 (15 - 6).
    assert!((grid.prefill_us(150, 11) - 6.9).abs() < 1e-12);
    assert!((grid.cost_per_token(150, 11) - 6.9 / 11.0).abs() < 1e-12);
}

#[test]
fn beyond_the_edges_it_is_clamped_and_nothing_new_takes_no_time() {
    let grid = grid();
    assert_eq!((grid.prefill_us(1000, 1000), grid.prefill_us(0, 1), grid.prefill_us(u32::MAX, 15)), (27.0, 1.0, 18.0));
    assert_eq!((grid.prefill_us(100, 0), grid.cost_per_token(100, 0)), (0.0, 0.0));
    let point = r#"{"source": "", "kv_bytes_per_token": 1, "cached_tokens": [5], "new_tokens": [5], "time_us": [[7]]}"#;
    let point = CostGrid::from_json(point).unwrap();
    assert_eq!((point.prefill_us(0, 1), point.prefill_us(5, 5), point.prefill_us(9, 9)), (7.0, 7.0, 7.0));
}

#[test]
fn malformed_profiles_say_what_is_wrong() {
    let good = serde_json::to_value(grid()).unwrap();
    let wrong = [
        ("cached_tokens", serde_json::json!([])),
        ("cached_tokens", serde_json::json!([0, 100, 100])),
        ("new_tokens", serde_json::json!([20, 10])),
        ("time_us", serde_json::json!([[1, 3], [5, 11]])),
        ("time_us", serde_json::json!([[1, 3], [5, 11], [9]])),
        ("time_us", serde_json::json!([[1, 3], [5, 11], [9, 0]])),
        ("time_us", serde_json::json!([[1, 3], [5, 11], [9, "x"]])),
        ("time_us", serde_json::json!([[1, 3], [5, 11], [9, 1e300]])),
        ("kv_bytes_per_token", serde_json::json!(0)),
        ("kv_bytes_per_token", serde_json::json!(1u64 << 60)),
        ("layers", serde_json::json!(0)),
        ("layers", serde_json::json!(1 << 20)),
        ("place_us_per_byte", serde_json::json!(-0.1)),
        ("look_us_per_weight", serde_json::json!(1e300)),
        ("unheard_of", serde_json::json!(0)),
    ];
    for (key, value) in wrong {
        let mut profile = good.clone();
        profile[key] = value;
        let error = CostGrid::from_json(&profile.to_string()).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidInput, "{profile}");
    }
    assert_eq!(CostGrid::from_json(&good.to_string()).unwrap(), grid());
}

#[test]
fn the_built_in_profile_is_read_and_grows_with_both_lengths() {
    let grid = CostGrid::measured_default().unwrap();
    assert_eq!(grid.kv_bytes_per_token(), 24 * 2 * 128 * 2);
    for cached in [0, 700, 5_000, 100_000] {
        for new in [16, 100, 600, 3_000, 50_000] {
            let time = grid.prefill_us(cached, new);
            assert!(time < grid.prefill_us(cached, 2 * new), "{cached} {new}");
            assert!(time < grid.prefill_us(2 * cached + 4_000, new), "{cached} {new}");
        }
    }
}

proptest! {
    #[test]
    fn a_value_lies_between_its_neighbours(cached in 0u32..400, new in 1u32..40) {
        let time = grid().prefill_us(cached, new);
        prop_assert!((1.0..=27.0).contains(&time));
    }
}

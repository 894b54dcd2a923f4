//! `/v1/cache…`: what the tiers hold, and what operators do about it. Everything but the status is for the data folder's
//! owner and, with keys, for admins (`crate::api::permissions`).

mod calibration;
mod entries;
mod invalidate;
mod status;
mod transfer;
mod upkeep;
mod warm;

use actix_web::web::{self, ServiceConfig};

pub use self::warm::begin as begin_warm_up;
use super::resource;

/// All paths below `/v1/cache`.
pub fn paths(config: &mut ServiceConfig) {
    config
        .service(resource("/v1/cache/status", "GET", vec![web::get().to(status::status)]))
        .service(resource(
            "/v1/cache/calibration",
            "GET, POST",
            vec![web::get().to(calibration::calibration), web::post().to(calibration::calibrate)],
        ))
        .service(resource("/v1/cache/plans", "GET", vec![web::get().to(status::plans)]))
        .service(resource("/v1/cache/entries", "GET", vec![web::get().to(entries::list)]))
        .service(resource("/v1/cache/evict", "POST", vec![web::post().to(entries::evict)]))
        .service(resource("/v1/cache/pin", "POST", vec![web::post().to(entries::pin)]))
        .service(resource("/v1/cache/unpin", "POST", vec![web::post().to(entries::unpin)]))
        .service(resource("/v1/cache/invalidate", "POST", vec![web::post().to(invalidate::invalidate)]))
        .service(resource("/v1/cache/verify", "POST", vec![web::post().to(upkeep::verify)]))
        .service(resource("/v1/cache/gc", "POST", vec![web::post().to(upkeep::collect)]))
        .service(resource("/v1/cache/export", "POST", vec![web::post().to(transfer::export)]))
        .service(resource("/v1/cache/import", "POST", vec![web::post().to(transfer::import)]))
        .service(resource("/v1/cache/warm", "POST", vec![web::post().to(warm::warm)]))
        .service(resource("/v1/cache/jobs", "GET", vec![web::get().to(warm::jobs)]))
        .service(resource("/v1/cache/jobs/{job}", "DELETE", vec![web::delete().to(warm::cancel)]));
}

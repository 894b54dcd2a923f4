//! Whole-system tests: the real program on folders of its own, through its command line and its HTTP surface. One binary,
//! because each one links the whole stack.

mod bad_input;
mod bad_models;
mod bench_serve;
mod browsers;
mod cache;
mod calibrate;
mod command_line;
mod doctor;
mod eval;
mod faults;
mod filters;
mod forged;
mod forms;
mod gguf;
mod harness;
mod hostile_clients;
mod hostile_files;
mod http_docs;
mod hub;
mod ingest;
mod invalidate;
mod keys;
mod kill;
mod limits;
mod lossy;
mod mcp;
mod metrics;
mod migrate;
mod models;
mod openai_client;
mod openai_fields;
mod openai_shape;
mod openai_tools;
#[path = "../outside/mod.rs"]
mod outside;
mod page;
mod pml;
mod python_client;
mod renewal;
mod request_bounds;
mod rerank;
mod restart;
mod rounds;
mod s3;
#[path = "../s3_server/mod.rs"]
mod s3_server;
mod schemas;
mod simulate;
mod tree;
mod warm;

// Capture of streams into graphs.
#pragma once

#include <memory>
#include <vector>

#include "stream.hpp"

namespace standin {

/// An operation of a graph. Streams are counted in the order in which they joined the capture; 0 is the one it began with.
struct Node {
    Work work;
    size_t stream;
    /// Nodes it waits for, besides the earlier ones of its stream.
    std::vector<size_t> after;
};

struct Capture {
    std::vector<Node> nodes;
    std::vector<Stream*> streams;
    /// For each stream, by stream: how many nodes of that come before what is captured next.
    std::vector<Clock> clocks;
    /// By node: what it comes after, and itself.
    std::vector<Clock> node_clocks;
    /// Something was done that a capture does not allow; its end reports an error.
    bool is_broken = false;
};

using Graph = std::vector<Node>;

struct GraphExec {
    Graph graph;
    Device* device = nullptr;
    /// For the graph's streams from 1 on; made with the first launch.
    std::vector<Stream*> streams;
    std::shared_ptr<Event> last_end;
};

void begin_capture(Stream& stream);
/// Adds to the capture that `stream` takes part in. Gives the node.
size_t capture(Stream& stream, Work work, const std::vector<size_t>& after = {});
/// Takes `stream` into a capture by a wait for a node of it.
void join_capture(Stream& stream, const std::shared_ptr<Capture>& capture, size_t node);
/// Ends it; false if a stream that joined was not waited for by the first.
bool end_capture(Stream& stream, Graph& graph);
/// Puts the operations of a graph into streams.
void launch_graph(GraphExec& exec, Stream& stream);

}  // namespace standin

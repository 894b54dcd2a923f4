// How the lanes of a warp meet.
#pragma once

#include <bit>
#include <cstring>

#include "fibre.hpp"

namespace standin {

/// Report that the running thread may not wait so.
void wrong_mask(const Wait& wait);
void wrong_meeting(const Wait& wait, unsigned waiting);

inline bool same_place(const Place& a, const Place& b) {
    return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

inline bool is_same(const Wait& a, const Wait& b) {
    return a.collective == b.collective && a.kind == b.kind && a.mask == b.mask && a.width == b.width && same_place(a.place, b.place);
}

/// The meeting that the running thread comes to, new if it is the first. Lanes that wait elsewhere must not be in its mask.
inline Meeting& meeting_of(Warp& warp, const Wait& wait) {
    for (Meeting& meeting : warp.meetings) {
        if ((meeting.arrived & wait.mask) == 0) continue;
        if (!is_same(meeting.wait, wait)) wrong_meeting(wait, meeting.arrived & wait.mask);
        return meeting;
    }
    return warp.meetings.emplace_back(Meeting{wait, 0});
}

/// Waits until all lanes of the mask are here. True for the one that came last, which does the work for all and then calls `release`.
inline bool meet(const Wait& wait) {
    Warp& warp = warp_of(*running);
    const unsigned lane = 1u << lane_of(*running);
    if ((wait.mask & lane) == 0 || (wait.mask & warp.finished) != 0) wrong_mask(wait);
    running->wait = wait;
    Meeting& meeting = meeting_of(warp, wait);
    meeting.arrived |= lane;
    if (meeting.arrived != (wait.mask & warp.lanes)) {
        suspend();
        return false;
    }
    if (&meeting != &warp.meetings.back()) meeting = warp.meetings.back();
    warp.meetings.pop_back();
    return true;
}

/// Goes on as the running thread; the others of `lanes` may go on, too.
inline void release(unsigned lanes) {
    Thread* const first = &block.threads[running->number / 32 * 32];
    for (unsigned left = lanes & warp_of(*running).lanes; left != 0; left &= left - 1) {
        Thread& thread = first[std::countr_zero(left)];
        thread.wait.collective = Collective::none;
        if (&thread != running) block.ready.push_back(&thread);
    }
    set_current(running);
}

}  // namespace standin

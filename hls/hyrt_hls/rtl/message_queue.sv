// FIFO between one scatter unit and one gather unit. `depth` (1..MOST) is its capacity in messages. A pop frees a slot
// only for the next cycle, because `full` reflects the state at the beginning of the cycle.
module message_queue #(
    parameter int MOST = 32,
    parameter int WIDTH = 56
) (
    input  logic clk,
    input  logic rst,
    input  logic [$clog2(MOST + 1) - 1:0] depth,
    input  logic push,
    input  logic [WIDTH - 1:0] data,
    input  logic pop,
    output logic full,
    output logic empty,
    output logic [WIDTH - 1:0] head
);
    localparam int PLACES = $clog2(MOST);

    logic [WIDTH - 1:0] store [MOST];
    logic [PLACES - 1:0] first;
    logic [PLACES - 1:0] next;
    logic [$clog2(MOST + 1) - 1:0] count;

    assign full = count >= depth;
    assign empty = count == 0;
    assign head = store[first];

    function automatic logic [PLACES - 1:0] after(input logic [PLACES - 1:0] place);
        return int'(place) == MOST - 1 ? '0 : place + 1'b1;
    endfunction

    always_ff @(posedge clk) begin
        if (rst) begin
            first <= '0;
            next <= '0;
            count <= '0;
        end else begin
            if (push) begin
                store[next] <= data;
                next <= after(next);
            end
            if (pop) first <= after(first);
            if (push && !pop) count <= count + 1'b1;
            if (pop && !push) count <= count - 1'b1;
        end
    end
endmodule

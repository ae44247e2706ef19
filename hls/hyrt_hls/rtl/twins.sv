// Top module of the simulation: the network with 4 and with 8 units, and arrays of three shapes. `wide` and `shape`
// select the network and the array that are driven and read.
module twins #(
    parameter int DEPTH_MOST = 32,
    parameter int LATENCY_MOST = 8
) (
    input  logic clk,
    input  logic rst,

    input  logic wide,  // 8 units instead of 4
    input  logic [5:0] depth,
    input  logic [3:0] latency,
    input  logic [7:0] chunks,
    input  logic group_valid,
    input  logic [7:0] group_edges,
    input  logic [7:0][15:0] group_rows,
    input  logic [7:0][31:0] group_weights,
    input  logic [31:0] feature,
    output logic [7:0] chunk,
    output logic group_done,
    output logic busy,
    input  logic [15:0] read_row,
    input  logic [7:0] read_chunk,
    output logic [31:0] read_value,

    input  logic [1:0] shape,
    input  logic step_valid,
    input  logic step_first,
    input  logic step_last,
    input  logic [4:0][31:0] a,
    input  logic [7:0][31:0] b,
    output logic complete,  // for the element farthest from the corner
    input  logic [2:0] read_r,
    input  logic [2:0] read_c,
    output logic [31:0] read_sum
);
    logic [1:0][7:0] chunk_of;
    logic [1:0] done_of, busy_of;
    logic [1:0][31:0] value_of;

    assign chunk = chunk_of[wide];
    assign group_done = done_of[wide];
    assign busy = busy_of[wide];
    assign read_value = value_of[wide];

    for (genvar i = 0; i < 2; i++) begin : network
        localparam int PES = i == 0 ? 4 : 8;
        aggregate_network #(.PES(PES), .DEPTH_MOST(DEPTH_MOST), .LATENCY_MOST(LATENCY_MOST)) twin (
            .clk, .rst, .depth, .latency, .chunks,
            .group_valid(group_valid && wide == (i == 1)),
            .group_edges(group_edges[PES - 1:0]),
            .group_rows(group_rows[PES - 1:0]),
            .group_weights(group_weights[PES - 1:0]),
            .feature,
            .chunk(chunk_of[i]), .group_done(done_of[i]), .busy(busy_of[i]),
            .read_row, .read_chunk, .read_value(value_of[i])
        );
    end

    logic [2:0] complete_of;
    logic [2:0][31:0] sum_of;

    assign complete = complete_of[shape];
    assign read_sum = sum_of[shape];

    for (genvar i = 0; i < 3; i++) begin : array
        localparam int ROWS = i == 0 ? 4 : i == 1 ? 2 : 5;
        localparam int COLS = i == 0 ? 4 : i == 1 ? 8 : 3;
        logic [ROWS - 1:0][COLS - 1:0] complete_each;
        logic [ROWS - 1:0][COLS - 1:0][31:0] sums;
        systolic_array #(.ROWS(ROWS), .COLS(COLS)) twin (
            .clk, .rst,
            .valid(step_valid), .first(step_first), .last(step_last),
            .a(a[ROWS - 1:0]), .b(b[COLS - 1:0]),
            .complete(complete_each), .sums
        );
        assign complete_of[i] = complete_each[ROWS - 1][COLS - 1];
        assign sum_of[i] = sums[read_r][read_c];
    end
endmodule

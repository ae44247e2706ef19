// Output-stationary array: element (r, c) accumulates a[r] * b[c] over the steps of its tile. Operands arrive unskewed,
// one step k of all rows and columns per cycle; delay lines at the edges delay them by r and c cycles. `first` and
// `last` mark a tile's first and last step, and are passed on with the operands; tiles may follow each other without a
// gap. Cycle-equivalent to `systolic_cycles` of hyrt_perfmodel/fpga_design.py with overlapped tiles. Values are
// integers.
module systolic_array #(
    parameter int ROWS = 4,
    parameter int COLS = 4,
    parameter int VALUE_BITS = 32
) (
    input  logic clk,
    input  logic rst,
    input  logic valid,
    input  logic first,
    input  logic last,
    input  logic [ROWS - 1:0][VALUE_BITS - 1:0] a,
    input  logic [COLS - 1:0][VALUE_BITS - 1:0] b,
    // Per element: whether its tile's sum was completed at the last clock edge; `sums` holds it until the next one.
    output logic [ROWS - 1:0][COLS - 1:0] complete,
    output logic [ROWS - 1:0][COLS - 1:0][VALUE_BITS - 1:0] sums
);
    localparam int STEP_BITS = VALUE_BITS + 3;

    // Inputs of element (r, c): from the left, with the flags, and from above.
    logic [ROWS - 1:0][COLS - 1:0][STEP_BITS - 1:0] right;
    logic [ROWS - 1:0][COLS - 1:0][VALUE_BITS - 1:0] down;

    for (genvar r = 0; r < ROWS; r++) begin : left_edge
        logic [r:0][STEP_BITS - 1:0] line;
        assign line[0] = {valid, first, last, a[r]};
        assign right[r][0] = line[r];
        for (genvar i = 1; i <= r; i++) begin : delay
            always_ff @(posedge clk) line[i] <= rst ? '0 : line[i - 1];
        end
    end

    for (genvar c = 0; c < COLS; c++) begin : upper_edge
        logic [c:0][VALUE_BITS - 1:0] line;
        assign line[0] = b[c];
        assign down[0][c] = line[c];
        for (genvar i = 1; i <= c; i++) begin : delay
            always_ff @(posedge clk) line[i] <= rst ? '0 : line[i - 1];
        end
    end

    for (genvar r = 0; r < ROWS; r++) begin : row
        for (genvar c = 0; c < COLS; c++) begin : column
            logic here, begins, ends;
            logic [VALUE_BITS - 1:0] factor, sum, added;

            assign {here, begins, ends, factor} = right[r][c];
            assign added = (begins ? '0 : sum) + factor * down[r][c];

            always_ff @(posedge clk) begin
                complete[r][c] <= !rst && here && ends;
                if (here) sum <= added;
                if (here && ends) sums[r][c] <= added;
            end
            if (c + 1 < COLS) begin : rightwards
                always_ff @(posedge clk) right[r][c + 1] <= rst ? '0 : right[r][c];
            end
            if (r + 1 < ROWS) begin : downwards
                always_ff @(posedge clk) down[r + 1][c] <= rst ? '0 : down[r][c];
            end
        end
    end
endmodule
